package blockdev

import "golang.org/x/sys/unix"

// Opened is the store of a device as one process hands it to the next: the open file
// description, which carries its lock and what of failed writes it has not reported yet, and
// what the process knew about it.
type Opened struct {
	FD       int    `json:"-"`    // belongs to whoever has the Opened
	Size     int64  `json:"size"` // bytes, of the device
	ID       string `json:"id"`   // Info.ID
	CacheID  string `json:"cache_id,omitempty"`
	Poisoned bool   `json:"poisoned,omitempty"` // a sync has failed
}

// Discard closes the descriptor of a store that nobody opens.
func (o *Opened) Discard() { _ = unix.Close(o.FD) }

// HandsOver is a device whose store can go to another process while it is open there and
// here. Only one of the two may use it at a time.
type HandsOver interface {
	// HandOver returns the store, with a descriptor of its own. The device stays open.
	HandOver() (Opened, error)
}
