package lint

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// A message that docs/TROUBLESHOOTING.md explains is one that a program can say.
func TestExplainedMessagesExist(t *testing.T) {
	doc, err := os.ReadFile("../../docs/TROUBLESHOOTING.md")
	if err != nil {
		t.Fatal(err)
	}
	verb := regexp.MustCompile(`%[-+# 0-9.*]*[a-zA-Z]`)
	var all strings.Builder
	for _, f := range sources(t) {
		if !f.test {
			all.WriteString(verb.ReplaceAllString(string(f.src), "…"))
		}
	}
	text := all.String()
	headings := regexp.MustCompile("(?m)^### `(.*)`$").FindAllStringSubmatch(string(doc), -1)
	if len(headings) < 20 {
		t.Fatalf("only %d messages are explained", len(headings))
	}
	for _, h := range headings {
		for part := range strings.SplitSeq(h[1], "…") {
			if part = strings.TrimSpace(part); len(part) > 4 && !strings.Contains(text, part) {
				t.Errorf("no source says %q", part)
			}
		}
	}
}
