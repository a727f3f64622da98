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
	decisionParts = regexp.MustCompile(`(?m)^(?:// )?(?:\*\*)?(Superseded|Amended|Context|Decision|Other ways|Consequences)(?:\.|\*\* by)`)
	laterDecision = regexp.MustCompile(`(?m)^\*\*(?:Superseded|Amended)\*\* by \[ADR (\d+)\]\([^)]+\): .+\.$`)
	decisionLink  = regexp.MustCompile(`docs/adr/(\d{4}-[a-z0-9-]+\.md)|\((?:\.\./)*adr/(\d{4}-[a-z0-9-]+\.md)`)
)

// decisions are the texts of all, by number: those in docs/adr and those in the comments of packages.
func decisions(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	paths, _ := filepath.Glob("../../docs/adr/[0-9]*.md")
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		at := decision.FindAllSubmatchIndex(text, -1)
		for i, m := range at {
			end := len(text)
			if i+1 < len(at) {
				end = at[i+1][0]
			}
			texts[string(text[m[2]:m[3]])] = string(text[m[1]:end])
		}
	}
	index, err := os.ReadFile("../../docs/adr/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range movedDecision.FindAllSubmatch(index, -1) {
		text, err := os.ReadFile(filepath.Join("../..", string(m[2])))
		if err != nil {
			t.Fatal(err)
		}
		_, mine, _ := strings.Cut(string(text), "(ADR "+string(m[1])+")\n//\n")
		mine, _, _ = strings.Cut(mine, "\npackage ")
		mine, _, _ = strings.Cut(mine, "\n// # ")
		texts[string(m[1])] = mine
	}
	return texts
}

// TestDecisionsHaveOneForm: the parts that docs/adr/README.md names, in that order; what a later
// decision has changed says so, and the later one says what it has changed.
func TestDecisionsHaveOneForm(t *testing.T) {
	texts := decisions(t)
	for n, text := range texts {
		var parts []string
		for _, m := range decisionParts.FindAllStringSubmatch(text, -1) {
			if m[1] == "Superseded" || m[1] == "Amended" {
				later := laterDecision.FindStringSubmatch(text)
				if later == nil {
					t.Errorf("decision %s: %s by which, and why? (**%s** by [ADR 7](file.md): what.)", n, m[1], m[1])
				} else if !regexp.MustCompile(`ADRs? (?:\d+(?:, | and ))*\[?` + n + `\b`).MatchString(texts[later[1]]) {
					t.Errorf("decision %s is %s by %s, which does not name it", n, strings.ToLower(m[1]), later[1])
				}
				continue
			}
			if m[1] != "Other ways" {
				parts = append(parts, m[1])
			}
		}
		if got := strings.Join(parts, ", "); got != "Context, Decision, Consequences" {
			t.Errorf("decision %s has the parts %s", n, got)
		}
	}
	if len(texts) < 100 {
		t.Errorf("only %d decisions were found", len(texts))
	}
}

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
