// Package rdmamsg is what a storage protocol over RDMA needs of every connection,
// whatever its messages say: messages in Sends, data by RDMA Write and Read.
//
//   - A [Device] is the RDMA side of a process: protection domain, receive buffers
//     that all connections share, the memory that is registered.
//   - A [Link] is the queue pair of one connection with its completion queues.
//   - A [Pump] moves what a connection has to send into the queue pair: messages and
//     Writes in order, Reads as far as the peer serves them, each cut into as many
//     work requests as it takes.
//   - [Windows] are the memory of a connection that its peer may reach for now.
//
// # Receiving
//
// Buffers are posted in chunks as they are needed. A connection that holds more than
// its share of them while they are scarce must leave what it has just received; one
// that holds no more than its share always finds a buffer.
//
// # Locks
//
// A Pump and the Windows of a connection have no lock: the connection's own guards
// them, and the calls to an [Owner] come with it held. It is held while requests are
// posted and while Reap polls for their completions, never across Push or while a handler
// polls for what was received. Device.mu guards growth and registration.
package rdmamsg
