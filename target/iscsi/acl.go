package iscsi

import (
	"net/netip"
	"slices"
	"strings"
)

// Rule lets an initiator in when every part that is set matches. The zero Rule
// matches everybody.
type Rule struct {
	// Initiator is an iSCSI name in which * stands for any run of characters and
	// ? for one: "iqn.1993-08.org.debian:*". Names compare without case (RFC 7143
	// §4.2.7.2: they are normalised to lower case). Empty: any name.
	Initiator string
	// Network is where the connection must come from. The zero Prefix: anywhere.
	Network netip.Prefix
	// Users, when there are any, are the CHAP names to which the initiator names of
	// this rule belong: whatever other rules say, only these users come in under
	// them. Users of one name may take over each other's sessions and reservations.
	Users []string
	// Certificates, when there are any, are names in certificates (common name, DNS, URI) to
	// which the initiator names of this rule belong in the same way: whoever comes in under
	// them has shown one that has such a name, in TLS.
	Certificates []string
}

// ACL is a list of rules, of which one must match. A nil ACL admits everybody;
// an empty, non-nil one nobody.
type ACL []Rule

// allow reports whether the initiator may come in, and if not, why. Who it is has
// still to be proved (see allowUser).
func (a ACL) allow(initiator string, from netip.Addr) (ok bool, reason string) {
	if a == nil {
		return true, ""
	}
	from = plain(from)
	named := false
	for _, r := range a {
		if !r.names(initiator) {
			continue
		}
		if r.reaches(from) {
			return true, ""
		}
		named = true
	}
	if named {
		return false, "initiator name is listed, but not for address " + from.String()
	}
	return false, "no access rule names this initiator"
}

// allowUser reports whether a user may come in under an initiator's name, and whether
// the list binds that name to users.
func (a ACL) allowUser(initiator string, from netip.Addr, user string) (ok, bound bool) {
	return a.allowOwner(initiator, from, func(r *Rule) (owned, his bool) {
		return len(r.Users) > 0, slices.Contains(r.Users, user)
	})
}

// allowCertificate reports the same for whoever has shown a certificate with these names;
// none: he has shown none.
func (a ACL) allowCertificate(initiator string, from netip.Addr, names []string) (ok, bound bool) {
	return a.allowOwner(initiator, from, func(r *Rule) (owned, his bool) {
		return len(r.Certificates) > 0, slices.ContainsFunc(r.Certificates, func(c string) bool { return hasName(names, c) })
	})
}

// allowOwner reports whether somebody may come in under an initiator's name, and whether
// that name has owners; owner says whether it has them by a rule, and whether he is one.
func (a ACL) allowOwner(initiator string, from netip.Addr, owner func(*Rule) (owned, his bool)) (ok, bound bool) {
	if a == nil {
		return true, false
	}
	from = plain(from)
	free, mine := false, false // a rule without owners lets the initiator in, one of which he is an owner
	for i := range a {
		r := &a[i]
		if !r.names(initiator) {
			continue
		}
		owned, his := owner(r)
		bound = bound || owned
		switch {
		case !r.reaches(from):
		case !owned:
			free = true
		default:
			mine = mine || his
		}
	}
	return mine || free && !bound, bound
}

// names reports whether the rule is about an initiator of that name.
func (r *Rule) names(initiator string) bool {
	return r.Initiator == "" || matchName(strings.ToLower(r.Initiator), strings.ToLower(initiator))
}

// reaches reports whether the rule is about connections from a plain address.
func (r *Rule) reaches(from netip.Addr) bool {
	return !r.Network.IsValid() || r.Network.Contains(from)
}

// plain is an address as networks of rules have it: IPv4 is not written as IPv6, and there is no zone.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// namesSome reports whether the rule is about some initiators' names, and not about all.
func (r Rule) namesSome() bool { return strings.Trim(r.Initiator, "*?") != "" }

// matchName reports whether s matches pattern, in linear memory and
// O(len(pattern)·len(s)) time: on a mismatch it returns to the last star only.
func matchName(pattern, s string) bool {
	p, i := 0, 0
	star, mark := -1, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, i
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]):
			p++
			i++
		case star >= 0:
			mark++
			p, i = star+1, mark
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}
