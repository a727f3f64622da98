package lint

import (
	"go/ast"
	"strings"
	"testing"
)

// What can be configured, is documented and validated, has to have an effect: every
// field of the file model is read by somebody who gets the configuration.
func TestEveryConfigFieldIsRead(t *testing.T) {
	// Read by package config itself, which hands on what it makes of them.
	inside := map[string]string{
		"User.SecretFile":  "User.Secret",
		"User.SecretEnv":   "User.Secret",
		"Portal.Protocols": "Portal.Speaks",

		"HostKey.DHCHAPSecretFile":     "HostKey.Secret",
		"HostKey.DHCHAPSecretEnv":      "HostKey.Secret",
		"HostKey.DHCHAPCtrlSecretFile": "HostKey.CtrlSecret",
		"HostKey.DHCHAPCtrlSecretEnv":  "HostKey.CtrlSecret",
		"HostKey.TLSKeyFile":           "HostKey.TLSKey",
		"HostKey.TLSKeyEnv":            "HostKey.TLSKey",
	}
	read := map[string]bool{}
	for _, f := range sources(t) {
		if f.test || under(f.pkg, "config") || !importsUnder(f, module+"/config") {
			continue
		}
		written := map[ast.Expr]bool{}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for _, x := range n.Lhs {
					written[x] = true
				}
			case *ast.SelectorExpr:
				read[n.Sel.Name] = read[n.Sel.Name] || !written[n]
			}
			return true
		})
	}
	fields := 0
	for _, f := range sources(t) {
		if f.pkg != "config" || f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			s, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			for _, field := range s.Fields.List {
				if field.Tag == nil || !strings.Contains(field.Tag.Value, "mapstructure:") {
					continue
				}
				for _, name := range field.Names {
					fields++
					full := spec.Name.Name + "." + name.Name
					if !read[name.Name] && inside[full] == "" {
						t.Errorf("%s: nothing outside config reads %s: let it have its effect, or take it away", fset.Position(name.Pos()), full)
					}
				}
			}
			return true
		})
	}
	if fields < 100 {
		t.Fatalf("found only %d fields of the configuration", fields)
	}
}
