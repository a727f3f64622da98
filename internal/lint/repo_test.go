package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "softiser"

// file is one Go source file of the repository.
type file struct {
	path    string // relative to the root, with slashes
	pkg     string // folder, "." for the root
	test    bool
	ast     *ast.File
	src     []byte
	imports []string
}

var fset = token.NewFileSet()

// sources is every Go file below the root.
func sources(t *testing.T) []file {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("found only %d Go files; the walk is broken", len(all))
	}
	return all
}

// parsed reads the repository once for all tests.
var parsed = sync.OnceValues(func() (all []file, err error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != root {
			if n := d.Name(); n == "testdata" || strings.HasPrefix(n, ".") || strings.HasPrefix(n, "_") {
				return filepath.SkipDir
			}
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") {
			return nil
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		a, err := parser.ParseFile(fset, p, src, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		f := file{path: rel, pkg: path.Dir(rel), test: strings.HasSuffix(rel, "_test.go"), ast: a, src: src}
		for _, i := range a.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, name)
		}
		all = append(all, f)
		return nil
	})
	return all, err
})

// under reports whether an import path or folder is p or lies below it.
func under(name, p string) bool { return name == p || strings.HasPrefix(name, p+"/") }
