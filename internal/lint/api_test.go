package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// compiled imports packages as the compiler has left them: their API with its types.
var compiled = sync.OnceValues(func() (types.Importer, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}", "./...")
	cmd.Dir = "../.."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		exports[name] = file
	}
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	}), nil
})

// imported is the package in a folder of this repository.
func imported(t *testing.T, folder string) *types.Package {
	t.Helper()
	i, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := i.Import(module + "/" + folder)
	if err != nil {
		t.Fatalf("%s: %v", folder, err)
	}
	return pkg
}

// internal reports whether nobody outside of this repository can import a package.
func internal(path string) bool {
	return strings.HasPrefix(path, module+"/internal/") || strings.Contains(path, "/internal/")
}

// libraries are the folders of packages that others import.
var libraries = []string{"rdma", "target", "initiator", "blockdev", "lvm", "config"}

// libraryPackages are the public packages of this repository.
func libraryPackages(t *testing.T) (all []*types.Package) {
	t.Helper()
	seen := map[string]bool{}
	for _, f := range sources(t) {
		if !f.test && !seen[f.pkg] && inAny(f.pkg, libraries) && !internal(module+"/"+f.pkg+"/") {
			seen[f.pkg] = true
			all = append(all, imported(t, f.pkg))
		}
	}
	if len(all) < 20 {
		t.Fatalf("found only %d public packages", len(all))
	}
	return all
}

// A user can neither declare a variable of an internal type nor find its
// documentation: what public API hands out and takes has a public name, if only that of
// an alias.
func TestPublicAPINamesPublicTypes(t *testing.T) {
	a := api{published: map[*types.TypeName]bool{}}
	all := libraryPackages(t)
	exported := func(f func(name string, o types.Object)) {
		for _, p := range all {
			for _, name := range p.Scope().Names() {
				if ast.IsExported(name) {
					f(p.Path()+"."+name, p.Scope().Lookup(name))
				}
			}
		}
	}
	exported(func(_ string, o types.Object) {
		if tn, ok := o.(*types.TypeName); ok && tn.IsAlias() {
			if named, ok := types.Unalias(tn.Type()).(*types.Named); ok {
				a.published[named.Obj()] = true
			}
		}
	})
	exported(a.object)
	for _, fault := range a.faults {
		t.Error(fault)
	}
}

// api collects the internal types that exported names lead to.
type api struct {
	published map[*types.TypeName]bool // internal, with an alias in a public package
	faults    []string
}

// object looks at what an exported name of a package shows.
func (a *api) object(name string, o types.Object) {
	tn, ok := o.(*types.TypeName)
	if !ok {
		a.look(name, o.Type())
		return
	}
	a.look(name, tn.Type().Underlying())
	if named, ok := tn.Type().(*types.Named); ok { // an alias is read for its fields
		a.methods(name, named)
	}
}

func (a *api) methods(name string, n *types.Named) {
	for m := range n.Methods() {
		if m.Exported() {
			a.look(name+"."+m.Name(), m.Type())
		}
	}
}

// look goes through a type up to the named ones.
func (a *api) look(what string, t types.Type) {
	switch t := t.(type) {
	case *types.Alias:
		a.named(what, t.Obj())
	case *types.Named:
		a.named(what, t.Obj())
		for arg := range t.TypeArgs().Types() {
			a.look(what, arg)
		}
	case *types.Pointer:
		a.look(what, t.Elem())
	case *types.Slice:
		a.look(what, t.Elem())
	case *types.Array:
		a.look(what, t.Elem())
	case *types.Chan:
		a.look(what, t.Elem())
	case *types.Map:
		a.look(what, t.Key())
		a.look(what, t.Elem())
	case *types.Signature:
		a.look(what, t.Params())
		a.look(what, t.Results())
	case *types.Tuple:
		for v := range t.Variables() {
			a.look(what, v.Type())
		}
	case *types.Struct:
		for v := range t.Fields() {
			a.field(what, v)
		}
	case *types.Interface:
		for m := range t.Methods() {
			if m.Exported() {
				a.look(what+"."+m.Name(), m.Type())
			}
		}
	}
}

func (a *api) field(what string, v *types.Var) {
	t := types.Unalias(v.Type())
	if p, ok := t.(*types.Pointer); ok {
		t = types.Unalias(p.Elem())
	}
	n, named := t.(*types.Named)
	switch {
	case !v.Exported():
	case v.Embedded() && named: // it lends its methods
		a.methods(what, n)
	default:
		a.look(what+"."+v.Name(), v.Type())
	}
}

func (a *api) named(what string, o *types.TypeName) {
	if p := o.Pkg(); p != nil && internal(p.Path()) && !a.published[o] {
		a.faults = append(a.faults, fmt.Sprintf("%s names %s.%s, which is internal: give it a public name", what, p.Path(), o.Name()))
	}
}

// Names of public types are asked for with any value, for instance to say that it is
// none: what has no name says its number.
func TestPublicNamesDoNotPanic(t *testing.T) {
	methods := 0
	for _, f := range sources(t) {
		if f.test || !inAny(f.pkg, libraries) || internal(module+"/"+f.pkg+"/") {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil || fn.Name.Name != "String" || len(fn.Recv.List[0].Names) == 0 {
				continue
			}
			methods++
			on, named := fn.Recv.List[0].Type.(*ast.Ident)
			if !named || !on.IsExported() || len(fn.Body.List) != 1 {
				continue
			}
			r, ok := fn.Body.List[0].(*ast.ReturnStmt)
			if !ok || len(r.Results) != 1 {
				continue
			}
			x, ok := r.Results[0].(*ast.IndexExpr)
			if !ok {
				continue
			}
			if i, ok := x.Index.(*ast.Ident); ok && i.Name == fn.Recv.List[0].Names[0].Name {
				t.Errorf("%s: %s panics for a value without a name", fset.Position(fn.Pos()), on.Name)
			}
		}
	}
	if methods < 10 {
		t.Fatalf("found only %d names", methods)
	}
}
