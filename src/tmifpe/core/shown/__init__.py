"""What every room needs to show something: tables of text, and colours."""
