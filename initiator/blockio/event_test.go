package blockio

import (
	"errors"
	"testing"
	"time"
)

type word string

func (w word) String() string { return string(w) }

func TestEventLine(t *testing.T) {
	for want, l := range map[string]EventLine{
		"iqn.x at [::1]:3260: connected: iSER over iWARP":                                       {Kind: word("connected"), Detail: "iSER over iWARP"},
		"iqn.x at [::1]:3260: connection lost: it is gone":                                      {Kind: word("connection lost"), Err: errors.New("it is gone")},
		"iqn.x at [::1]:3260: reconnect failed: refused (down for 1.5s), next attempt in 200ms": {Kind: word("reconnect failed"), Err: errors.New("refused"), Down: 1500 * time.Millisecond, Wait: 200 * time.Millisecond},
		"iqn.x at [::1]:3260: recovered: iSER over iWARP (down for 2s), 0 commands replayed":    {Kind: word("recovered"), Detail: "iSER over iWARP", Down: 2 * time.Second, Recovered: true},
	} {
		l.Target, l.Address = "iqn.x", "[::1]:3260"
		if got := l.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
