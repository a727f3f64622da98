// Package sock is the byte stream below MPA: non-blocking vectored system calls
// on a connected stream socket, with the Go network poller for waiting. It is the
// only package of rdma that knows the operating system.
//
// A Conn is used by at most one reader and one writer at a time; which goroutine
// that is may change. The file descriptor stays open until Close, which the owner
// calls when neither of them is inside a call any more. Shutdown wakes both up.
package sock
