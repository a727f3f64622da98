package main

import (
	"flag"
	"testing"

	"softiser/internal/usage"
	"softiser/internal/usage/mantest"
)

var manDir = flag.String("man", "", "write the man pages to this folder (make man)")

// Every command has a man page, made of its help.
func TestManPages(t *testing.T) {
	root := newRoot()
	usage.Tree(root)
	mantest.Write(t, root, *manDir, "iser-target serve and its administration")
}
