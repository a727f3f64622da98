// Package mem is the gate to memory from the wire. Whatever a peer wants to read or
// write is named by an STag, a tagged offset and a length; [Table.Lookup] finds the
// region behind the STag and [Region.Check] is the only place that decides whether
// the peer may:
//
//	STag --> Table --> Region --Hold--> Check: valid, domain, stream, rights, bounds
//	                                      |
//	                                      +--> offset into Pieces, until Release
//	                                      +--> Fault, for the provider to translate
//
// A [Fault] says in neutral words what was wrong. What the peer is told, a Terminate
// code of iWARP for one, is for the caller to know.
//
// The package knows neither queue pairs nor headers: a [Domain] and a [Stream] are
// identities that a protection domain and a queue pair embed.
package mem
