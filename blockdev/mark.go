package blockdev

// MarkAttribute is the extended attribute that a Marker of a file keeps its text in.
const MarkAttribute = "user.softiser.rewrite"

// Marker is a device that keeps a short text beside its content: who opens it next finds that
// there, whatever else they know of it. It goes where the store goes, and not into copies.
type Marker interface {
	// Mark returns the text; "": there is none. The error is ErrNotSupported where the store
	// keeps none.
	Mark() (string, error)
	// SetMark replaces the text, durably when it returns; "" takes it away.
	SetMark(text string) error
}
