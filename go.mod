module softiser

go 1.26
