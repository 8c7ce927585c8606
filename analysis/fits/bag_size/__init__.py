"""The best bag size and step ratio: the minimum of one U-shaped curve (`optimum`), of every curve
of a grid (`grid_optimum`), and what moves it (`trends`)."""
