// Package handover gives what one process has open to the process that takes its place:
// descriptors, and a state that says what they are, over a Unix socket, in two phases.
//
//	old process (Give)                          new process (Take)
//	      <──────────────── hello ────────────────  which versions of the state it reads
//	      ──── refuse ────> or goes on              nothing has happened
//	Freeze: nothing of it changes any more
//	      ──── files, … , state ──────────────────> looked at, prepared; nothing is touched
//	      <──────────────── ready ────────────────  or refuse, or the end
//	      ──── yours ─────────────────────────────> from here on it is the new one's
//	ends at once, touches nothing
//
// Until "yours" has been written the old process can go on as if nothing had happened, and does
// (Offer.Thaw) when anything fails: the other end is gone, is silent for too long, says what
// was not expected. The new one may not write, read or answer anything before it has read
// "yours", and once it has said "ready" it waits for that as long as the old one lives: only
// the old one may lose its patience, because it alone knows whose the files are.
//
// A version of the state is a number. The old process writes the one it knows best; the new
// one reads its own and the one before it. Anything else is refused before the old process has
// done anything, a downgrade included.
//
// Succession is what surrounds Give in a process that serves for long: handovers take turns,
// and a new process that this one has started is waited for.
//
// Every length that comes is compared with a limit before memory is made for it; a frame
// carries the CRC32C of its payload. Both ends are of one user, so that this guards against
// mistakes and versions, not against an attacker, who could open the files directly.
package handover
