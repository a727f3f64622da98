package lint

import (
	"go/ast"
	"strings"
	"testing"
)

// writers are functions beside the setters that write a field of the name of state, and why.
var writers = map[string]string{
	"initiator.prepare":        "a request begins anew: it is nobody else's",
	"target/volume.newVolume":  "a pointer to what is saved, which is no machine",
	"target/volume.SetPath":    "an administrator says what it is; any may follow any",
	"internal/sockio.blocking": "what a socket can do, found out once",
	"internal/sockio.turns":    "the same",
	"target/registry.set":      "the cluster's manager says what follows; it is in one place",
}

// A state machine has one writer, which goes by a table of legal transitions: a function
// whose comment says that it is the only writer. Literals, which make a value, are none.
func TestStatesHaveOneWriter(t *testing.T) {
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil || strings.Contains(fn.Doc.Text(), "the only") || writers[f.pkg+"."+fn.Name.Name] != "" {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				a, ok := n.(*ast.AssignStmt)
				if !ok {
					return true
				}
				for _, l := range a.Lhs {
					if s, ok := l.(*ast.SelectorExpr); ok && (s.Sel.Name == "state" || s.Sel.Name == "st") {
						t.Errorf("%s: %s writes a state; make a setter for that, the only writer, with a table of what may follow", fset.Position(a.Pos()), fn.Name.Name)
					}
				}
				return true
			})
		}
	}
}
