package main

// Part 12: two nodes, one volume. docs/ha has the same configurations.
var haCases = concat(pathCases, drbdCases, fileSystemCases, stackCases)
