package nvmf

// Users is how many associations take part in the RDMA device of the process.
func Users() int {
	device.mu.Lock()
	defer device.mu.Unlock()
	return device.users
}
