package volume

import (
	"os"
	"path/filepath"

	"softiser/internal/durable"
	"softiser/target/internal/statefile"
)

// Store keeps the state of volumes in records, each of which is replaced as a whole. There
// are two: a folder of this process alone, and one that the nodes of a cluster share
// (target/internal/ownership).
type Store interface {
	// Load returns a record; an error that is fs.ErrNotExist says that there is none.
	Load(name string) ([]byte, error)
	// Peek is Load on a node that does not have the volume: what the one that has it has
	// saved last. An error that is not fs.ErrNotExist says that this cannot be told from here.
	Peek(name string) ([]byte, error)
	// Save makes b the record, durably when it returns. After an error the record is what
	// it was, unless the error is statefile.ErrUncertain.
	Save(name string, b []byte) error
	// Remove takes a record away, durably when it returns.
	Remove(name string) error
	// Dir is the folder for what is written in place, the undo journal.
	Dir() string
	// Check tells why this node may not write there now; nil: it may.
	Check() error
	// Shared reports whether another node may go on with the volume at any time: then
	// everything is saved that a client has been told.
	Shared() bool
}

// dirStore is a folder of this process.
type dirStore string

// Load implements Store.
func (d dirStore) Load(name string) ([]byte, error) {
	name = filepath.Join(string(d), name)
	statefile.RemoveUnfinished(name)
	return os.ReadFile(name)
}

// Peek implements Store.
func (d dirStore) Peek(name string) ([]byte, error) { return d.Load(name) }

// Save implements Store.
func (d dirStore) Save(name string, b []byte) error {
	return statefile.Replace(filepath.Join(string(d), name), b)
}

// Remove implements Store.
func (d dirStore) Remove(name string) error {
	if err := os.Remove(filepath.Join(string(d), name)); err != nil {
		return err
	}
	return durable.SyncDir(string(d))
}

// Dir implements Store.
func (d dirStore) Dir() string { return string(d) }

// Check implements Store.
func (d dirStore) Check() error { return nil }

// Shared implements Store.
func (d dirStore) Shared() bool { return false }
