def up(): pass
