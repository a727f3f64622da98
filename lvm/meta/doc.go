// Package meta reads and writes the text in which LVM2 describes a volume
// group, and models its content.
//
// A text is a tree ([Section]) of assignments and sections:
//
//	vg0 {
//	id = "78MHJC-hFZx-Bave-60ZG-KofP-sBnX-QxZDgY"
//	seqno = 3
//	status = ["RESIZEABLE", "READ", "WRITE"]
//
//	physical_volumes {
//
//	pv0 {
//	...
//
// The tree keeps everything, comments and blank lines included, so that a text
// that was only parsed is written back byte for byte. The model ([VG], [PV],
// [LV], [Segment]) is a view: changed fields are put back into the tree they
// came from, and what the model does not know (tags of a later version, other
// segment types, flags) stays as it was.
package meta

import "errors"

// Limits of the parser: a text comes from a disk that anybody may have written.
const (
	MaxText  = 64 << 20
	maxDepth = 16
)

// ErrSyntax marks a text that is not in LVM2's grammar.
var ErrSyntax = errors.New("syntax error in LVM2 metadata")
