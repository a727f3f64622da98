package lint

import (
	"bytes"
	"go/ast"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestFormatted(t *testing.T) {
	for _, f := range sources(t) {
		want, err := format.Source(f.src)
		if err != nil {
			t.Errorf("%s: %v", f.path, err)
		} else if !bytes.Equal(want, f.src) {
			t.Errorf("%s is not gofmt'ed", f.path)
		}
	}
}

func TestPackageComments(t *testing.T) {
	documented := map[string]bool{}
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		documented[f.pkg] = documented[f.pkg] || f.ast.Doc != nil && len(strings.TrimSpace(f.ast.Doc.Text())) > 20
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("%s has no package comment: say what it is for and how its parts work together", pkg)
		}
	}
}

// TestHeadingsHaveText: below a heading of a comment there is a sentence before the next heading.
func TestHeadingsHaveText(t *testing.T) {
	bare := regexp.MustCompile(`(?m)^# (.+)\n\n# `)
	for _, f := range sources(t) {
		if f.ast.Doc == nil {
			continue
		}
		if m := bare.FindStringSubmatch(f.ast.Doc.Text()); m != nil {
			t.Errorf("%s: there is nothing under the heading %q", f.path, m[1])
		}
	}
}

// A source file over this many lines is looked at hard: it is on the list with
// its reason, or it is cut by topic.
const maxLines = 600

var longFiles = map[string]string{}

func TestFilesAreOneTopic(t *testing.T) {
	for _, f := range sources(t) {
		n := bytes.Count(f.src, []byte("\n"))
		if _, ok := longFiles[f.path]; !f.test && n > maxLines && !ok {
			t.Errorf("%s has %d lines; cut it by topic, or list it with the reason", f.path, n)
		}
	}
}

// A type with more methods than this was cut into files, not into parts, or is on the list
// with the reason why it has so many, and no more than that.
const maxMethods = 45

var manyMethods = map[string]struct {
	most int
	why  string
}{
	"internal/iscsi.BHS": {70, "a view of 48 bytes: a method for each field of each PDU"},
	"internal/nvme.SQE":  {50, "a view of 64 bytes: a method for each command that is built in it"},
}

func TestTypesAreOneIdea(t *testing.T) {
	methods := map[string]int{}
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				on := fn.Recv.List[0].Type
				if p, ok := on.(*ast.StarExpr); ok {
					on = p.X
				}
				if p, ok := on.(*ast.IndexExpr); ok { // a generic type
					on = p.X
				}
				if id, ok := on.(*ast.Ident); ok {
					methods[f.pkg+"."+id.Name]++
				}
			}
		}
	}
	for name, n := range methods {
		most, listed := max(maxMethods, manyMethods[name].most), manyMethods[name].most > 0
		if n > most {
			t.Errorf("%s has %d methods; more than %d are several ideas", name, n, most)
		}
		if listed && n <= maxMethods {
			t.Errorf("%s has %d methods; it need not be listed any more", name, n)
		}
	}
	if methods["rdma.QP"] == 0 {
		t.Error("no methods were counted")
	}
}

// A function of more lines than this has a sentence that says what it is for.
const maxSilent = 25

func TestLongFunctionsAreExplained(t *testing.T) {
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Doc != nil || fn.Name.Name == "main" || fn.Name.Name == "init" {
				continue
			}
			if n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1; n > maxSilent {
				t.Errorf("%s: %s has %d lines and no comment", fset.Position(fn.Pos()), fn.Name.Name, n)
			}
		}
	}
}

// TestCommentsHaveTheNameOfTheirSubject: the comment of a function, method or type that begins with a word in lower case
// begins with its name. One that was renamed and keeps its old comment sends a reader to look for what is not there.
func TestCommentsHaveTheNameOfTheirSubject(t *testing.T) {
	lower := regexp.MustCompile(`^[a-z]\w*`)
	check := func(name string, doc *ast.CommentGroup) {
		if doc == nil {
			return
		}
		word := lower.FindString(doc.Text())
		if word != "" && word != name {
			t.Errorf("%s: the comment of %s begins with %s", fset.Position(doc.Pos()), name, word)
		}
	}
	for _, f := range sources(t) {
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				// A test says what should be: its comment is a sentence about that.
				if !f.test || !strings.HasPrefix(d.Name.Name, "Test") {
					check(d.Name.Name, d.Doc)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					s, ok := s.(*ast.TypeSpec)
					switch {
					case !ok:
					case d.Lparen.IsValid():
						check(s.Name.Name, s.Doc)
					default:
						check(s.Name.Name, d.Doc)
					}
				}
			}
		}
	}
}

// What is left open belongs into an issue or the README, not into a comment.
func TestNothingLeftOpen(t *testing.T) {
	for _, f := range sources(t) {
		if f.pkg == "internal/lint" {
			continue
		}
		for _, group := range f.ast.Comments {
			for _, w := range []string{"TODO", "FIXME", "XXX", "not implemented", "unimplemented"} {
				if strings.Contains(group.Text(), w) {
					t.Errorf("%s: a comment says %q", fset.Position(group.Pos()), w)
				}
			}
		}
	}
}

// A package that the map does not show is one that a reader comes upon by chance.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	doc, err := os.ReadFile("../../docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	pkgs := map[string]bool{}
	for _, f := range sources(t) {
		pkgs[f.pkg] = true
	}
	for pkg := range pkgs {
		if !bytes.Contains(doc, []byte("`"+pkg+"`")) {
			t.Errorf("docs/ARCHITECTURE.md does not name `%s`", pkg)
		}
	}
	// And what it names as a package of ours is one.
	for _, m := range regexp.MustCompile("`((?:cmd|target|initiator|internal|rdma|blockdev|lvm|interop|benchmarks|config)(?:/[a-z0-9-]+)*)`").FindAllSubmatch(doc, -1) {
		if !pkgs[string(m[1])] {
			t.Errorf("docs/ARCHITECTURE.md names `%s`, which does not exist", m[1])
		}
	}
}

// What is built stays out of the history.
func TestNoProgramsAreTracked(t *testing.T) {
	out, err := exec.Command("git", "-C", "../..", "ls-files", "-z").Output()
	if err != nil {
		t.Skip("no git, or not in a clone: ", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		f, err := os.Open(filepath.Join("../..", name))
		if err != nil {
			continue // removed, and not committed yet
		}
		var magic [4]byte
		if n, _ := f.Read(magic[:]); n == 4 && string(magic[:]) == "\x7fELF" {
			t.Errorf("%s is a program", name)
		}
		f.Close()
	}
}
