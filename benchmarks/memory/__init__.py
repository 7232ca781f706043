"""How little memory a model is planned for, beside lower bounds."""
