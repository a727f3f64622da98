// Package snapshots takes snapshots of logical volumes at set times, and removes the oldest of
// them beyond a number.
//
// A [Scheduler] has a [Plan] for each volume, and a [Store] that lists, makes and removes
// snapshots. Which snapshots there are is all that it has to remember, and the store does: the time
// is in the name. So a restart, or another node that takes over, goes on where the last one was:
// if at least one time has passed since the newest snapshot, or if there is none, one is taken at
// once, however many times have been missed.
//
// Only what a plan has made is counted and removed, and of that nothing that is in use. A time at
// which it fails is over; the next one is tried again. Storage that does not answer for one volume
// holds up no other.
//
// Times are those of the clock, in UTC: multiples of the interval since a Monday at midnight, and
// Plan.At. A clock that is set back lets times pass that have been there before; what was taken at
// a time still to come neither stands for one to come nor outlives others.
package snapshots
