"""Write a run and a tuning run as one HTML file that opens offline."""
