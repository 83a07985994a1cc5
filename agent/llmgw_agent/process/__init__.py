"""Engine processes: started so that they outlive the agent, known again after its restart, ended for certain."""
