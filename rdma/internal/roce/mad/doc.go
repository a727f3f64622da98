// Package mad encodes and decodes the datagrams by which RoCE makes connections:
// management datagrams (MAD) of the communication management class, as Linux's ib_cm
// sends them, and what rdma_cm puts into their private data.
//
// A MAD is the payload of one UD Send to queue pair 1. It always has 256 bytes:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+---------------+---------------+---------------+
//	|BaseVersion = 1| MgmtClass = 7 |ClassVersion = 2|  Method = 3  |   0
//	+---------------+---------------+---------------+---------------+
//	|          Status = 0           |         reserved = 0          |   4
//	+-------------------------------+-------------------------------+
//	|                                                               |   8
//	+                         TransactionID                         +
//	|                                                               |
//	+-------------------------------+-------------------------------+
//	|          AttributeID          |         reserved = 0          |  16
//	+-------------------------------+-------------------------------+
//	|                     AttributeModifier = 0                     |  20
//	+---------------------------------------------------------------+
//	|               one message of 232 bytes: Message               ~  24
//	+---------------------------------------------------------------+
//
// (IBA vol. 1 §13.4.3, §16.7.) Offsets in the other boxes count from the message, so
// that private data begins where the box ends. Bits that are marked reserved are sent as zero and not
// looked at; so are the fields of Reliable Datagram (EE contexts), which nobody has.
//
// Private data has no length of its own: the receiver always gets all of it, with
// zeros behind what was sent, and how much there is differs by message.
//
// The package has no state and does no I/O. All integers are big-endian.
package mad
