package main

// Two nodes, one volume. docs/ha has the same configurations.
var haCases = concat(pathCases, drbdCases, fileSystemCases, stackCases)
