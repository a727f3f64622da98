// Package uring is the part of Linux' io_uring that commands to a driver need
// (IORING_OP_URING_CMD): entries of 128 bytes, their completions, one system call that
// submits what is queued and waits.
//
//	Next ──fill──► Enter ──kernel──► Take
//
// A ring is one goroutine's. Drivers may insist that their commands come from one thread
// for as long as they live, and the kernel runs what completes them in the thread that
// submitted them: such a goroutine keeps its thread (runtime.LockOSThread) and waits in
// Enter, not in the Go poller.
//
// The kernel sees addresses in entries only as numbers. Memory that they name is not the
// Go heap's, or is pinned until the completion has been taken.
package uring
