package lint

import (
	"go/ast"
	"path"
	"testing"
)

// A test that sleeps until something has probably happened depends on luck
// (internal/await waits for it); time that passes in a synctest bubble costs
// nothing. Any other sleep is the subject of its test, and a comment on its line
// or the one before it says so.
func TestSleepsAreExplained(t *testing.T) {
	bubbles := map[string]bool{} // functions that run what they are given in a bubble, by folder
	for _, f := range sources(t) {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil && f.test && fn.Recv == nil {
				ast.Inspect(fn.Body, func(n ast.Node) bool {
					if c, ok := n.(*ast.CallExpr); ok && callee(c) == "synctest.Test" {
						bubbles[path.Join(f.pkg, fn.Name.Name)] = true
					}
					return true
				})
			}
		}
	}
	found := 0
	for _, f := range sources(t) {
		if !f.test {
			continue
		}
		commented := map[int]bool{}
		for _, g := range f.ast.Comments {
			commented[fset.Position(g.End()).Line] = true
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if name := callee(c); name == "synctest.Test" || bubbles[path.Join(f.pkg, name)] {
				return false
			} else if name == "time.Sleep" {
				found++
				if at := fset.Position(c.Pos()); !commented[at.Line] && !commented[at.Line-1] {
					t.Errorf("%s: wait for what the test needs (internal/await, testing/synctest), or say why it sleeps", at)
				}
			}
			return true
		})
	}
	if found == 0 {
		t.Error("no sleep was found; the walk is broken")
	}
}

// What a test counts of allocations is counted by alloctest, which knows that the race
// detector makes a sync.Pool forget.
func TestAllocationsAreCountedInOnePlace(t *testing.T) {
	found := 0
	for _, f := range sources(t) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if c, ok := n.(*ast.CallExpr); ok && callee(c) == "testing.AllocsPerRun" {
				if found++; f.pkg != "internal/alloctest" {
					t.Errorf("%s: internal/alloctest counts allocations", fset.Position(c.Pos()))
				}
			}
			return true
		})
	}
	if found == 0 {
		t.Error("internal/alloctest was not found; the walk is broken")
	}
}

// callee is the name of the function that c calls: "f" or "pkg.f".
func callee(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
	}
	return ""
}
