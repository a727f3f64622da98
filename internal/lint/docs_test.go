package lint

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// TestStepsAreWhereTheyAreSaidToBe: the functions in the table of steps of docs/ARCHITECTURE.md are in the files that
// it names. A file without its folder may be that of any package.
func TestStepsAreWhereTheyAreSaidToBe(t *testing.T) {
	doc, err := os.ReadFile("../../docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "## The same, step by step")
	table, _, _ = strings.Cut(table, "\n## ")
	functions := map[string]bool{} // "file: function", with and without the folder
	for _, f := range sources(t) {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && !f.test {
				functions[f.path+": "+fn.Name.Name] = true
				functions[path.Base(f.path)+": "+fn.Name.Name] = true
			}
		}
	}
	steps := regexp.MustCompile("`([\\w/]+\\.go): ([\\w, ]+)`").FindAllStringSubmatch(table, -1)
	if len(steps) < 30 {
		t.Fatalf("only %d steps were found", len(steps))
	}
	for _, s := range steps {
		for name := range strings.SplitSeq(s[2], ", ") {
			if !functions[s[1]+": "+name] {
				t.Errorf("%s has no function %s", s[1], name)
			}
		}
	}
}

// TestComplianceNamesWhatIsThere: files, functions and tests that a table of docs/compliance names exist: the
// files in a folder that the document names, or below it; the function behind a file in that file.
func TestComplianceNamesWhatIsThere(t *testing.T) {
	files, tests := map[string]file{}, map[string]bool{}
	folders := map[string]bool{}
	for _, f := range sources(t) {
		if !f.test {
			files[f.path] = f
		}
		for dir := f.pkg; dir != "."; dir = path.Dir(dir) {
			folders[dir] = true
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && fn.Recv == nil {
				tests[fn.Name.Name] = true
			}
		}
	}
	// find is the files that name means in a document that names these folders.
	find := func(name string, named []string) (found []file) {
		for p, f := range files {
			for _, dir := range named {
				if p == name || strings.HasPrefix(p, dir+"/") && strings.HasSuffix(p, "/"+name) {
					found = append(found, f)
					break
				}
			}
		}
		return found
	}
	testName := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*…?`)
	folder := regexp.MustCompile("`([a-z0-9/]+)`")
	place := regexp.MustCompile("(\\w[\\w/]*\\.go)(`? `?(?:\\w+\\.)?(\\w+)(\\.go)?)?")
	link := regexp.MustCompile(`\]\([^)]*\)`) // of decisions and files elsewhere, which TestDecisions looks at
	docs, err := filepath.Glob("../../docs/compliance/*.md")
	if err != nil || len(docs) < 10 {
		t.Fatalf("%d documents, %v", len(docs), err)
	}
	places := 0
	for _, name := range docs {
		doc, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var named []string
		for _, m := range folder.FindAllStringSubmatch(string(doc), -1) {
			if folders[m[1]] {
				named = append(named, m[1])
			}
		}
		for i, line := range strings.Split(link.ReplaceAllString(string(doc), ""), "\n") {
			if !strings.HasPrefix(line, "|") {
				continue
			}
			at := filepath.Base(name) + ":" + strconv.Itoa(i+1)
			for _, s := range testName.FindAllString(line, -1) {
				start, some := strings.CutSuffix(s, "…")
				if !tests[s] && !(some && startsOne(tests, start)) {
					t.Errorf("%s: there is no test %s", at, s)
				}
			}
			for _, m := range place.FindAllStringSubmatch(line, -1) {
				places++
				in := find(m[1], named)
				if len(in) == 0 {
					t.Errorf("%s: there is no %s in the folders that the document names", at, m[1])
				} else if m[3] != "" && m[4] == "" && !declaredIn(in, m[3]) {
					t.Errorf("%s: %s has no %s", at, m[1], m[3])
				}
			}
		}
	}
	if places < 200 {
		t.Errorf("only %d places were found", places)
	}
}

// TestDocumentsNameFilesThatAre: a Go file that the map or a decision names is there, in the folder that it
// is said to be in.
func TestDocumentsNameFilesThatAre(t *testing.T) {
	docs, err := filepath.Glob("../../docs/adr/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, f := range sources(t) {
		paths = append(paths, "/"+f.path)
	}
	named := regexp.MustCompile("`(\\w[\\w/-]*\\.go)\\b")
	found := 0
	for _, name := range append(docs, "../../docs/ARCHITECTURE.md") {
		doc, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(doc), -1) {
			found++
			if !slices.ContainsFunc(paths, func(p string) bool { return strings.HasSuffix(p, "/"+m[1]) }) {
				t.Errorf("%s names %s, which is not there", filepath.Base(name), m[1])
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d files are named", found)
	}
}

// startsOne reports whether a name begins with start.
func startsOne(names map[string]bool, start string) bool {
	for n := range names {
		if strings.HasPrefix(n, start) {
			return true
		}
	}
	return false
}

// declaredIn reports whether one of the files declares name: a function, a type, a variable or a field.
func declaredIn(files []file, name string) (found bool) {
	for _, f := range files {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				found = found || n.Name.Name == name
			case *ast.TypeSpec:
				found = found || n.Name.Name == name
			case *ast.ValueSpec:
				for _, id := range n.Names {
					found = found || id.Name == name
				}
			case *ast.Field:
				for _, id := range n.Names {
					found = found || id.Name == name
				}
			}
			return !found
		})
	}
	return found
}
