// Package marks says when something fills up.
package marks

// First is the mark of the first warning, percent; the others follow at every
// five percent, as dmeventd's do.
const First = 80

// Marks remembers which marks were passed. The zero value has passed none.
type Marks struct{ told int }

// Passed reports whether use has reached a new mark. One that was reached
// counts anew only after the use has fallen well below it: a use that wavers
// around a mark is one warning.
func (m *Marks) Passed(used, total uint64) bool {
	mark := int(float64(used)*100/float64(max(total, 1))) / 5 * 5
	if mark <= m.told-10 {
		m.told = mark
	}
	if mark < First || mark <= m.told {
		return false
	}
	m.told = mark
	return true
}
