package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

func (r *report) cells() [][]string {
	out := make([][]string, len(r.rows))
	for i := range r.rows {
		for _, f := range r.fields {
			out[i] = append(out[i], f.text(&r.rows[i], r.unit, r.suffix))
		}
	}
	return out
}

// print writes the rows in the format that was asked for.
func (r *report) print(a *app, o reportFlags, kind string) {
	cells := r.cells()
	if o.format == "json" {
		if o.segments {
			kind = map[string]string{"lv": "seg", "pv": "pvseg"}[kind]
		}
		r.printJSON(a, kind, cells)
		return
	}
	if len(cells) == 0 {
		return
	}
	if o.prefixes {
		for _, c := range cells {
			for i, f := range r.fields {
				c[i] = "LVM2_" + strings.ToUpper(f.name) + "='" + c[i] + "'"
			}
		}
	}
	if o.asRows {
		r.printRows(a, o, cells)
		return
	}
	lines := cells
	if !o.noHeadings {
		var h []string
		for _, f := range r.fields {
			h = append(h, f.heading)
		}
		lines = append([][]string{h}, cells...)
	}
	pad := (o.separator == " " || o.aligned) && !o.prefixes
	for n, l := range lines {
		for i := range l {
			if !pad {
				continue
			}
			w := r.fields[i].width
			if w == 0 {
				w = len(r.fields[i].heading)
			}
			for _, c := range cells {
				w = max(w, len(c[i]))
			}
			if n == 0 && !o.noHeadings { // one of lvm2's headings is longer than its column
				l[i] = l[i][:min(len(l[i]), w)]
			}
			// Headings stand on the left whatever is below them.
			if r.fields[i].right() && (n > 0 || o.noHeadings) {
				l[i] = fmt.Sprintf("%*s", w, l[i])
			} else {
				l[i] = fmt.Sprintf("%-*s", w, l[i])
			}
		}
	}
	for _, l := range lines {
		fmt.Fprintln(a.out, "  "+strings.Join(l, o.separator))
	}
}

// printRows prints one line for each column.
func (r *report) printRows(a *app, o reportFlags, cells [][]string) {
	for i, f := range r.fields {
		var line []string
		if !o.noHeadings {
			line = append(line, f.heading)
		}
		for _, c := range cells {
			line = append(line, c[i])
		}
		fmt.Fprintln(a.out, "  "+strings.Join(line, o.separator))
	}
}

func (r *report) printJSON(a *app, kind string, cells [][]string) {
	fmt.Fprintf(a.out, "  {\n      \"report\": [\n          {\n              %q: [\n", kind)
	for i, c := range cells {
		var parts []string
		for j, f := range r.fields {
			v, _ := json.Marshal(c[j]) // strings always encode
			parts = append(parts, strconv.Quote(f.name)+":"+string(v))
		}
		end := ","
		if i == len(cells)-1 {
			end = ""
		}
		fmt.Fprintf(a.out, "                  {%s}%s\n", strings.Join(parts, ", "), end)
	}
	fmt.Fprint(a.out, "              ]\n          }\n      ]\n  }\n")
}
