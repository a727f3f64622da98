// Package capture writes what connections of this process send and receive as a pcap file for
// Wireshark and tshark. The Ethernet, IP and TCP headers are synthetic: they show the byte stream
// as the process sees it, without retransmissions, and without TLS where TLS carries it. Bytes
// that there was no room to copy are a gap in the sequence numbers.
package capture
