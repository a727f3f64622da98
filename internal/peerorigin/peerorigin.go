// Package peerorigin says where peers come from as far as shares are concerned: what one host may
// hold before it has proved who it is, is counted by that (ADR 102).
package peerorigin

import "net/netip"

// Of is an IPv4 address, or the /64 of an IPv6 one, because every host has as many addresses
// there as it likes.
func Of(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // of the zero address: the zero prefix
	return p
}
