"""What people see of the API's answers: pure functions from views to tables and text."""
