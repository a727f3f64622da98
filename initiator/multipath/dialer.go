package multipath

import (
	"context"

	"softiser/initiator/blockio"
)

// Dialer opens one path.
type Dialer struct {
	Name string // its URL, without secrets
	Open func(ctx context.Context, h Hooks) (blockio.Path, error)
	// Carried is what another process had of the path, to go on with. The volume takes it, and
	// gives it to the first Open.
	Carried *Carried

	portal Portal
	volume string // its URL without the portal; "" where nobody looks for others
}

// Hooks are what a path shares with the volume that it belongs to.
type Hooks struct {
	Cache   *blockio.Cache // the account of the volume's cache
	Changed func()         // to be called when the path's state may have changed; never blocks
	Carried *Carried       // to go on with; nil: there is nothing. What is not taken of it is closed
}

// dialer makes the Dialer of a wire, whose events are of type E: told hears each of them,
// before the volume looks what has become of the path.
func dialer[E any](url string, told func(E), open func(context.Context, Hooks, func(E)) (blockio.Path, error)) Dialer {
	return Dialer{Name: url, Open: func(ctx context.Context, h Hooks) (blockio.Path, error) {
		return open(ctx, h, func(e E) {
			if told != nil {
				told(e)
			}
			h.Changed()
		})
	}}
}

// opened returns no path at all where there is an error, instead of one that is nil.
func opened[P blockio.Path](p P, err error) (blockio.Path, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}
