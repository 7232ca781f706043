"""What a model keeps in Python, which no tensor of its graph holds: compared, named, refused."""
