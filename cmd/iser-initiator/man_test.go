package main

import (
	"flag"
	"testing"

	callerr "softiser/internal/usage"
	"softiser/internal/usage/mantest"
)

var manDir = flag.String("man", "", "write the man pages to this folder (make man)")

// Every command has a man page, made of its help.
func TestManPages(t *testing.T) {
	cmd := root()
	callerr.Tree(cmd)
	mantest.Write(t, cmd, *manDir, "iser-initiator")
}
