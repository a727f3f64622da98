package lint

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// What runs back up in the big packages. A reader of a package begins with the files that nobody
// calls and goes down; a call from a file further down to one that he has passed is an arrow back.
// Their number is that of the order of files that has the fewest, which nobody has to write down.
// A ceiling is what there was when it was set, and two more where much was being changed at that time: who meets it moves a
// function to where it belongs, or says here why not. ADR 198 has the figures of two earlier trees by the same measure.
var arrowsBack = map[string]int{
	"cmd/iser-target":       3,
	"config":                8,
	"initiator":             2,
	"initiator/bench":       2,
	"initiator/nvmf":        13,
	"internal/iscsi":        1,
	"internal/iscsitcp":     12,
	"internal/nvmetcp":      2,
	"lvm":                   5,
	"lvm/thin":              2,
	"rdma":                  1,
	"rdma/internal/iwarp":   10,
	"rdma/internal/roce":    1,
	"rdma/internal/roce/cm": 6,
	"target/iscsi":          2,
	"target/nvmf":           24,
	"target/registry":       4,
	"target/scsi":           3,
	"target/volume":         0,
}

// TestFilesCallDownwards counts, for each pair of files of a package of which one calls a function or
// method of the other, one arrow.
func TestFilesCallDownwards(t *testing.T) {
	tree := newTree(sources(t))
	for _, pkg := range slices.Sorted(maps.Keys(arrowsBack)) {
		arrows, example := tree.arrows(pkg)
		if len(arrows) == 0 {
			t.Errorf("%s: no calls between files were found", pkg)
		}
		order := fewestBack(arrows)
		back := backIn(order, arrows)
		t.Logf("%-28s %3d of %3d", pkg, len(back), len(arrows))
		if most := arrowsBack[pkg]; len(back) > most {
			t.Errorf("%s: %d of %d arrows between files run back up, %d did; from the top, its files are %s", pkg, len(back), len(arrows), most, strings.Join(order, " "))
			for _, a := range back {
				t.Logf("%s calls %s: %s", a.from, a.to, example[a])
			}
		}
	}
}

// tree knows the types of this repository; what is outside of it is unknown to it, and no call between our files needs that.
type tree struct {
	files map[string][]file // by folder
	pkgs  map[string]*types.Package
}

func newTree(all []file) *tree {
	t := &tree{map[string][]file{}, map[string]*types.Package{}}
	for _, f := range all {
		if !f.test {
			t.files[f.pkg] = append(t.files[f.pkg], f)
		}
	}
	return t
}

// Import is types.Importer: ours without the bodies of functions, others empty.
func (t *tree) Import(name string) (*types.Package, error) {
	if p := t.pkgs[name]; p != nil {
		return p, nil
	}
	folder, ours := strings.CutPrefix(name, module+"/")
	if !ours {
		p := types.NewPackage(name, path.Base(name))
		p.MarkComplete()
		t.pkgs[name] = p
		return p, nil
	}
	p, _ := t.check(folder, true)
	t.pkgs[name] = p
	return p, nil
}

func (t *tree) check(folder string, faces bool) (*types.Package, *types.Info) {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	var parsed []*ast.File
	for _, f := range t.files[folder] {
		parsed = append(parsed, f.ast)
	}
	c := types.Config{Importer: t, IgnoreFuncBodies: faces, FakeImportC: true, Error: func(error) {}}
	p, _ := c.Check(module+"/"+folder, fset, parsed, info)
	return p, info
}

// arrow is a call from one file of a package to another.
type arrow struct{ from, to string }

// arrows are those of one package, with a call as an example of each.
func (t *tree) arrows(folder string) (all []arrow, example map[arrow]string) {
	p, info := t.check(folder, false)
	example = map[arrow]string{}
	for _, f := range t.files[folder] {
		from := path.Base(f.path)
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			fn := called(info, call)
			if fn == nil || fn.Pkg() != p || !fn.Pos().IsValid() {
				return true
			}
			a := arrow{from, path.Base(fset.Position(fn.Pos()).Filename)}
			if _, known := example[a]; !known && a.from != a.to {
				example[a] = fmt.Sprintf("%s at line %d", fn.Name(), fset.Position(call.Pos()).Line)
				all = append(all, a)
			}
			return true
		})
	}
	return all, example
}

// called is the function or method that a call names; nil for function values, methods of interfaces, conversions and what is built in.
func called(info *types.Info, call *ast.CallExpr) *types.Func {
	fun := ast.Unparen(call.Fun)
	switch x := fun.(type) { // a generic function with its types
	case *ast.IndexExpr:
		fun = x.X
	case *ast.IndexListExpr:
		fun = x.X
	}
	var id *ast.Ident
	switch x := fun.(type) {
	case *ast.Ident:
		id = x
	case *ast.SelectorExpr:
		id = x.Sel
	default:
		return nil
	}
	fn, ok := info.Uses[id].(*types.Func)
	if !ok {
		return nil
	}
	if recv := fn.Signature().Recv(); recv != nil && types.IsInterface(recv.Type()) {
		return nil
	}
	return fn.Origin()
}

// fewestBack orders files so that few arrows run back: greedily (what nobody calls first, what calls nobody last,
// in between what calls most and is called least), then by moving single files as long as that helps.
func fewestBack(arrows []arrow) []string {
	out, in := map[string]map[string]bool{}, map[string]map[string]bool{}
	left := map[string]bool{}
	for _, a := range arrows {
		for _, n := range []string{a.from, a.to} {
			if !left[n] {
				left[n], out[n], in[n] = true, map[string]bool{}, map[string]bool{}
			}
		}
		out[a.from][a.to], in[a.to][a.from] = true, true
	}
	remaining := func(of map[string]bool) (n int) {
		for f := range of {
			if left[f] {
				n++
			}
		}
		return n
	}
	var first, last []string
	for len(left) > 0 {
		names := slices.Sorted(maps.Keys(left))
		sink := slices.IndexFunc(names, func(f string) bool { return remaining(out[f]) == 0 })
		if sink >= 0 {
			last = append(last, names[sink])
			delete(left, names[sink])
			continue
		}
		top := slices.MaxFunc(names, func(a, b string) int {
			return cmp.Compare(remaining(out[a])-remaining(in[a]), remaining(out[b])-remaining(in[b]))
		})
		if source := slices.IndexFunc(names, func(f string) bool { return remaining(in[f]) == 0 }); source >= 0 {
			top = names[source]
		}
		first = append(first, top)
		delete(left, top)
	}
	slices.Reverse(last)
	order := append(first, last...)
	for moved := true; moved; {
		moved = false
		for _, f := range slices.Clone(order) {
			at := slices.Index(order, f)
			best, gain := at, 0
			for _, dir := range []int{-1, 1} {
				sum := 0 // arrows back saved by moving f as far as i
				for i := at + dir; i >= 0 && i < len(order); i += dir {
					saved, lost := out[f][order[i]], in[f][order[i]]
					if dir > 0 {
						saved, lost = lost, saved
					}
					if saved {
						sum++
					}
					if lost {
						sum--
					}
					if sum > gain {
						best, gain = i, sum
					}
				}
			}
			if gain > 0 {
				order = slices.Insert(slices.Delete(order, at, at+1), best, f)
				moved = true
			}
		}
	}
	return order
}

// backIn are the arrows that run back up in an order.
func backIn(order []string, arrows []arrow) (back []arrow) {
	at := map[string]int{}
	for i, f := range order {
		at[f] = i
	}
	for _, a := range arrows {
		if at[a.from] > at[a.to] {
			back = append(back, a)
		}
	}
	return back
}

// TestFewestBack: orders whose best is known by counting.
func TestFewestBack(t *testing.T) {
	pairs := func(s string) (all []arrow) {
		for _, p := range strings.Fields(s) {
			from, to, _ := strings.Cut(p, ">")
			all = append(all, arrow{from, to})
		}
		return all
	}
	for s, want := range map[string]int{
		"a>b b>c a>c":                     0,
		"c>b b>a":                         0,
		"a>b b>a":                         1,
		"a>b b>c c>a":                     1,
		"a>b b>a c>d d>c b>c":             2,
		"a>b b>c c>d d>a b>d":             1,
		"m>a m>b m>c a>m b>m c>m":         3,
		"a>b a>c a>d b>a b>c c>b d>a d>b": 3,
	} {
		if got := len(backIn(fewestBack(pairs(s)), pairs(s))); got != want {
			t.Errorf("%s: %d run back, %d at the least", s, got, want)
		}
	}
}
