package blockdev

// MarkKind says what a mark is of.
type MarkKind string

// Kinds of marks: the names of the extended attributes that files keep them in.
const (
	MarkRewrite MarkKind = "user.softiser.rewrite" // a rewrite has begun and not ended
	MarkState   MarkKind = "user.softiser.state"   // what is kept elsewhere goes with the content
)

// Marker is a device that keeps short texts beside its content: who opens it next finds them
// there, whatever else they know of it. They go where the store goes, and not into copies, but for
// those that take along all there is of a file.
type Marker interface {
	// Mark returns the text; "": there is none. The error is ErrNotSupported where the store
	// keeps none.
	Mark(kind MarkKind) (string, error)
	// SetMark replaces the text, durably when it returns; "" takes it away.
	SetMark(kind MarkKind, text string) error
	// Unmark is the command by which an operator takes the text away.
	Unmark(kind MarkKind) string
}
