package lint

import (
	"go/ast"
	"go/build"
	"go/types"
	"path"
	"path/filepath"
	"reflect"
	"testing"
)

// What can be configured, is documented and validated, has to have an effect: every
// field of the file model is read by somebody who gets the configuration. It is the very
// field that counts, not its name: Portal.Listen says nothing of Admin.Listen.
func TestEveryConfigFieldIsRead(t *testing.T) {
	// Read by package config itself, which hands on what it makes of them.
	inside := map[string]string{
		"User.SecretFile":  "User.Secret",
		"User.SecretEnv":   "User.Secret",
		"Portal.Protocols": "Portal.Speaks",
		"ANAGroup.State":   "Namespace.Access",

		"HostKey.DHCHAPSecretFile":     "HostKey.Secret",
		"HostKey.DHCHAPSecretEnv":      "HostKey.Secret",
		"HostKey.DHCHAPCtrlSecretFile": "HostKey.CtrlSecret",
		"HostKey.DHCHAPCtrlSecretEnv":  "HostKey.CtrlSecret",
		"HostKey.DHCHAPHashes":         "HostKey.Proof",
		"HostKey.DHCHAPGroups":         "HostKey.Proof",
		"HostKey.TLSKeyFile":           "HostKey.TLSKey",
		"HostKey.TLSKeyEnv":            "HostKey.TLSKey",

		"PortalTLS.Cert":     "PortalTLS.Own",
		"PortalTLS.Key":      "PortalTLS.Own",
		"PortalTLS.ClientCA": "PortalTLS.ClientCAs",
		"PortalTLS.Mode":     "PortalTLS.Required",

		"Snapshots.At":   "Snapshots.Offset",
		"Snapshots.Name": "Volume.SnapshotPrefix",
	}
	read := configReads(t)
	scope := imported(t, "config").Scope()
	fields := 0
	for _, name := range scope.Names() {
		s, ok := scope.Lookup(name).Type().Underlying().(*types.Struct)
		if _, named := scope.Lookup(name).(*types.TypeName); !ok || !named {
			continue
		}
		for i := range s.NumFields() {
			if key := reflect.StructTag(s.Tag(i)).Get("mapstructure"); key == "" || key == "-" {
				continue
			}
			fields++
			full := name + "." + s.Field(i).Name()
			by := inside[full]
			switch {
			case by != "" && !read[by]:
				t.Errorf("nothing outside config calls %s, which hands on %s", by, full)
			case by == "" && !read[full]:
				t.Errorf("nothing outside config reads %s: let it have its effect, or take it away", full)
			}
		}
	}
	if fields < 100 {
		t.Fatalf("found only %d fields of the configuration", fields)
	}
}

// configReads returns the fields, as Type.Field, and the methods of package config that
// others use; a field that is only written is not used.
func configReads(t *testing.T) map[string]bool {
	t.Helper()
	importer, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string][]*ast.File{}
	users := map[string]bool{}
	for _, f := range sources(t) {
		dir, name := path.Split(f.path)
		if ok, err := build.Default.MatchFile(filepath.Join("../..", dir), name); err != nil || !ok || f.test || under(f.pkg, "config") {
			continue
		}
		packages[f.pkg] = append(packages[f.pkg], f.ast)
		users[f.pkg] = users[f.pkg] || importsUnder(f, module+"/config")
	}
	read := map[string]bool{}
	for pkg := range users {
		if !users[pkg] {
			continue
		}
		info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}}
		conf := types.Config{Importer: importer}
		if _, err := conf.Check(module+"/"+pkg, fset, packages[pkg], info); err != nil {
			t.Fatal(err)
		}
		for _, f := range packages[pkg] {
			usedSelections(f, info.Selections, read)
		}
	}
	return read
}

// usedSelections enters the fields and methods of package config that a file uses.
func usedSelections(f *ast.File, selections map[*ast.SelectorExpr]*types.Selection, used map[string]bool) {
	written := map[ast.Expr]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, x := range n.Lhs {
				written[x] = true
			}
		case *ast.SelectorExpr:
			s := selections[n]
			if s == nil || written[n] || s.Obj().Pkg() == nil || s.Obj().Pkg().Path() != module+"/config" {
				return true
			}
			// The type that declares it, through embedded fields and pointers.
			owner := s.Recv()
			for _, i := range s.Index()[:len(s.Index())-1] {
				owner = structOf(owner).Field(i).Type()
			}
			used[nameOf(owner)+"."+n.Sel.Name] = true
		}
		return true
	})
}

// pointee is t, or what it points to.
func pointee(t types.Type) types.Type {
	if p, ok := t.Underlying().(*types.Pointer); ok {
		return p.Elem()
	}
	return t
}

func structOf(t types.Type) *types.Struct { return pointee(t).Underlying().(*types.Struct) }

func nameOf(t types.Type) string {
	if n, ok := types.Unalias(pointee(t)).(*types.Named); ok {
		return n.Obj().Name()
	}
	return ""
}
