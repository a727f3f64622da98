// Package multipath makes one volume of several paths to it: portals, targets or
// controllers, over any wire. A path that is lost or that the target declares not to be the
// one to use is left for another; what it was carrying is repeated there as soon as that
// cannot harm.
//
//	       submit: the policy chooses among the best paths       no lock
//	          |
//	path --ok--------------------------------------------------> Done
//	          |--not carried out (never sent, not accessible)--> another path, at once
//	          |--reads, flushes of a lost path-----------------> another path, at once
//	          |--writes of a lost path, whole or in part-------> limbo until the path is fenced
//	          \--an answer that is an error--------------------> Done
//	no path --> held until there is one, or until NoPathRetry
//
// Paths are asked for their access state (ALUA, ANA) when they come up, when the target says
// that something has changed, and now and then:
//
//	opening --identity, size and blocks are the volume's--> up
//	   |  ^--- it cannot be opened, or is another volume (asked again)
//	up: optimized <-> non-optimized <-> transitioning <-> inaccessible <-> gone
//	up --lost--> down --reinstated, looked at--> up
//
// What makes it safe to repeat a write is written in docs/adr/0128-writes-of-a-lost-path.md.
package multipath
