package lint

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	decision      = regexp.MustCompile(`(?m)^##? (\d+)\. (.+)$`)
	movedDecision = regexp.MustCompile(`(?m)^\| (\d+) \| .+ \| package \[[^]]+\]\(\.\./\.\./([^)]+)\) \|$`)
	decisionLink  = regexp.MustCompile(`docs/adr/(\d{4}-[a-z0-9-]+\.md)|\((?:\.\./)*adr/(\d{4}-[a-z0-9-]+\.md)`)
)

// TestDecisions: docs/adr/README.md lists every decision with its file, no number
// is given twice, and what documents and comments refer to is there.
func TestDecisions(t *testing.T) {
	root := filepath.Join("..", "..")
	index, err := os.ReadFile(filepath.Join(root, "docs/adr/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	paths, _ := filepath.Glob(filepath.Join(root, "docs/adr/[0-9]*.md"))
	seen := map[string]string{}
	subjects, _, _ := strings.Cut(string(index), "## By number")
	for _, path := range paths {
		name := filepath.Base(path)
		if !strings.Contains(subjects, "]("+name+")") {
			t.Errorf("docs/adr/README.md has %s under no subject", name)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found := decision.FindAllStringSubmatch(string(text), -1)
		if len(found) == 0 {
			t.Errorf("%s: no heading like \"# 7. Title\"", name)
		}
		for _, m := range found {
			if other := seen[m[1]]; other != "" {
				t.Errorf("decision %s is in %s and in %s", m[1], other, name)
			}
			seen[m[1]] = name
			if row := fmt.Sprintf("| %s | %s | [%s](%s) |", m[1], m[2], name, name); !strings.Contains(string(index), row) {
				t.Errorf("docs/adr/README.md has no row %q", row)
			}
		}
	}
	if len(seen) == 0 {
		t.Fatal("no decisions found")
	}
	for _, m := range movedDecision.FindAllStringSubmatch(string(index), -1) {
		text, err := os.ReadFile(filepath.Join(root, m[2]))
		if err != nil || !strings.Contains(string(text), "(ADR "+m[1]+")\n//\n") {
			t.Errorf("docs/adr/README.md: decision %s is in the comment of %s under no heading with its number: %v", m[1], m[2], err)
		}
		if seen[m[1]] != "" {
			t.Errorf("decision %s is in %s and in %s", m[1], seen[m[1]], m[2])
		}
	}

	err = filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && (e.Name() == ".git" || e.Name() == "out" || e.Name() == "build") {
			return filepath.SkipDir
		}
		if ext := filepath.Ext(path); ext != ".md" && ext != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range decisionLink.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(root, "docs/adr", m[1]+m[2])); err != nil {
				t.Errorf("%s refers to docs/adr/%s, which is not there", path, m[1]+m[2])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
