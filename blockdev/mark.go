package blockdev

// MarkKind says what a mark is of.
type MarkKind string

// Kinds of marks: the names of the extended attributes that files keep them in.
const (
	MarkRewrite MarkKind = "user.softiser.rewrite" // a rewrite has begun and not ended
	MarkState   MarkKind = "user.softiser.state"   // what is kept elsewhere goes with the content
)

// Marker is a device that keeps short texts beside its content, for the process that opens it
// next. They move with the store. Copies of the content do not have them, except copies that
// include the extended attributes of the file.
type Marker interface {
	// Mark returns the text; "": there is none. The error is ErrNotSupported where the store
	// keeps none.
	Mark(kind MarkKind) (string, error)
	// SetMark replaces the text, durably when it returns; "" takes it away.
	SetMark(kind MarkKind, text string) error
	// Unmark returns the shell command with which an operator removes the text.
	Unmark(kind MarkKind) string
}
