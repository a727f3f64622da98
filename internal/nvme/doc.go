// Package nvme is NVM Express as it is spoken over fabrics, without any I/O:
// commands and completions, the Fabrics commands, properties, the data
// structures of Identify and Get Log Page, and the status codes.
//
// All integers are little-endian, whatever the transport.
//
// # Commands
//
// A command is a 64-byte submission queue entry, [SQE], its answer a 16-byte
// completion queue entry, [CQE]. Both are arrays, not structs with thirty fields:
// they lie in a received capsule as they are, so that looking at one costs
// nothing and nothing is allocated. What the command dwords mean depends on the
// command; a view gives them names:
//
//	rw := sqe.ReadWrite()       // of a Read, Write, Compare, Verify, Write Zeroes…
//	lba, n := rw.SLBA(), rw.Blocks()
//
//	c := sqe.NewConnect()       // clear, set opcode, fctype and PSDT
//	c.SetQID(1)
//
// # Structures
//
// What Identify and Get Log Page carry are structs that name the fields which
// this project sets or looks at; AppendTo makes the bytes, a Parse function reads
// them. Fields that are not named are zero on the wire and ignored.
//
// # Status
//
// A [Status] is code type, code, and the two bits that tell a host what to do
// next: Do Not Retry and More. It is an error, and it prints as what it means.
package nvme
