package main

import (
	"strings"
	"testing"

	"softiser/benchmarks/internal/result"
)

func TestSplice(t *testing.T) {
	text, err := splice("a\n"+generatedBegin+"\nold\n"+generatedEnd+"\nb\n", "new")
	if err != nil || text != "a\n"+generatedBegin+"\n\nnew\n"+generatedEnd+"\nb\n" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := splice("no marks", "x"); err == nil {
		t.Error("a file without marks was accepted")
	}
}

func TestGenerated(t *testing.T) {
	run := &result.Run{
		Machine:  map[string]string{"cores": "2"},
		Commands: map[string]string{"row/c": "/x/bin/iser-target serve --config /tmp/softiser-bench-1/target.yaml\nfio --uri=nbd+unix:///?socket=/tmp/softiser-bench-1/a.sock"},
		Rows:     []result.Row{{ID: "row", Title: "a row", Metrics: []string{result.IOPS}}},
		Samples:  []result.Sample{{Row: "row", Contender: "c", Values: result.Values{result.IOPS: 5}}},
	}
	got := generated(run, []string{"p.svg"})
	for _, want := range []string{"- cores: 2", "| a row | c |", "![p](img/p.svg)", "bin/iser-target serve --config SCRATCH/target.yaml", "SCRATCH/a.sock"} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
}
