"""What is stated beside a number: how much a stronger attack, or another model, finds in what it left standing."""
