package cli

// absentFields are lvm2's columns of what is not served: mirrors, RAID, caches,
// VDO, integrity, the devices file, dmeventd. They are blank, as lvm2's are for
// volumes without that feature.
var absentFields = blankFields([]field{
	{name: "cache_dirty_blocks", kind: "lv", heading: "CacheDirtyBlocks"},
	{name: "cache_read_hits", kind: "lv", heading: "CacheReadHits", width: 16},
	{name: "cache_read_misses", kind: "lv", heading: "CacheReadMisses", width: 16},
	{name: "cache_total_blocks", kind: "lv", heading: "CacheTotalBlocks"},
	{name: "cache_used_blocks", kind: "lv", heading: "CacheUsedBlocks", width: 16},
	{name: "cache_write_hits", kind: "lv", heading: "CacheWriteHits", width: 16},
	{name: "cache_write_misses", kind: "lv", heading: "CacheWriteMisses"},
	{name: "kernel_cache_policy", kind: "lv", heading: "KCachePolicy", width: 18},
	{name: "kernel_cache_settings", kind: "lv", heading: "KCacheSettings", width: 18},
	{name: "kernel_metadata_format", kind: "lv", heading: "KMFmt"},
	{name: "convert_lv_uuid", kind: "lv", heading: "Convert UUID", width: 38},
	{name: "mirror_log_uuid", kind: "lv", heading: "Log UUID", width: 38},
	{name: "move_pv_uuid", kind: "lv", heading: "Move UUID", width: 38},
	{name: "integritymismatches", kind: "lv", heading: "IntegMismatches"},
	{name: "raidintegritymode", kind: "lv", heading: "IntegMode"},
	{name: "raid_max_recovery_rate", kind: "lv", heading: "MaxSync"},
	{name: "raid_min_recovery_rate", kind: "lv", heading: "MinSync"},
	{name: "raid_mismatch_count", kind: "lv", heading: "Mismatches"},
	{name: "raid_sync_action", kind: "lv", heading: "SyncAction"},
	{name: "raid_write_behind", kind: "lv", heading: "WBehind"},
	{name: "sync_percent", kind: "lv", heading: "Cpy%Sync"},
	{name: "lv_converting", kind: "lv", heading: "Converting"},
	{name: "lv_image_synced", kind: "lv", heading: "ImgSynced", width: 10},
	{name: "lv_initial_image_sync", kind: "lv", heading: "InitImgSync", width: 10},
	{name: "lv_historical", kind: "lv", heading: "Historical"},
	{name: "lv_time_removed", kind: "lv", heading: "RTime", width: 26},
	{name: "vdo_compression_state", kind: "lv", heading: "VDOCompressionState"},
	{name: "vdo_index_state", kind: "lv", heading: "VDOIndexState"},
	{name: "vdo_operating_mode", kind: "lv", heading: "VDOOperatingMode"},
	{name: "vdo_saving_percent", kind: "lv", heading: "VDOSaving%"},
	{name: "vdo_used_size", kind: "lv", heading: "VDOUsedSize"},
	{name: "writecache_error", kind: "lv", heading: "WCacheErrors"},
	{name: "writecache_free_blocks", kind: "lv", heading: "WCacheFreeBlocks"},
	{name: "writecache_total_blocks", kind: "lv", heading: "WCacheTotalBlocks"},
	{name: "writecache_writeback_blocks", kind: "lv", heading: "WCacheWritebackBlocks"},
	{name: "cache_metadata_format", kind: "seg", heading: "CMFmt"},
	{name: "cache_mode", kind: "seg", heading: "CacheMode"},
	{name: "cache_policy", kind: "seg", heading: "CachePolicy"},
	{name: "cache_settings", kind: "seg", heading: "CacheSettings"},
	{name: "data_offset", kind: "seg", heading: "DOff"},
	{name: "new_data_offset", kind: "seg", heading: "NOff"},
	{name: "parity_chunks", kind: "seg", heading: "#Par"},
	{name: "reshape_len", kind: "seg", heading: "RSize"},
	{name: "reshape_len_le", kind: "seg", heading: "RSize"},
	{name: "metadata_devices", kind: "seg", heading: "Metadata Devs"},
	{name: "seg_metadata_le_ranges", kind: "seg", heading: "Metadata LE Ranges"},
	{name: "seg_monitor", kind: "seg", heading: "Monitor"},
	{name: "vdo_ack_threads", kind: "seg", heading: "VDOAckThreads"},
	{name: "vdo_bio_rotation", kind: "seg", heading: "VDOBioRotation"},
	{name: "vdo_bio_threads", kind: "seg", heading: "VDOBioThreads"},
	{name: "vdo_block_map_cache_size", kind: "seg", heading: "VDOBlockMapCacheSize"},
	{name: "vdo_block_map_era_length", kind: "seg", heading: "VDOBlockMapEraLength"},
	{name: "vdo_compression", kind: "seg", heading: "VDOCompression"},
	{name: "vdo_cpu_threads", kind: "seg", heading: "VDOCPUThreads"},
	{name: "vdo_deduplication", kind: "seg", heading: "VDODeduplication"},
	{name: "vdo_hash_zone_threads", kind: "seg", heading: "VDOHashZoneThreads"},
	{name: "vdo_header_size", kind: "seg", heading: "VDOHeaderSize"},
	{name: "vdo_index_memory_size", kind: "seg", heading: "VDOIndexMemorySize"},
	{name: "vdo_logical_threads", kind: "seg", heading: "VDOLogicalThreads"},
	{name: "vdo_max_discard", kind: "seg", heading: "VDOMaxDiscard"},
	{name: "vdo_minimum_io_size", kind: "seg", heading: "VDOMinimumIOSize"},
	{name: "vdo_physical_threads", kind: "seg", heading: "VDOPhysicalThreads"},
	{name: "vdo_slab_size", kind: "seg", heading: "VDOSlabSize"},
	{name: "vdo_use_metadata_hints", kind: "seg", heading: "VDOMetadataHints"},
	{name: "vdo_use_sparse_index", kind: "seg", heading: "VDOSparseIndex"},
	{name: "vdo_write_policy", kind: "seg", heading: "VDOWritePolicy"},
	{name: "pv_device_id", kind: "pv", heading: "DeviceID"},
	{name: "pv_device_id_type", kind: "pv", heading: "DeviceIDType"},
	{name: "pv_duplicate", kind: "pv", heading: "Duplicate"},
})

const blankHelp = "Blank: of what is not served here"

func blankFields(fs []field) []field {
	for i := range fs {
		f := &fs[i]
		f.str = empty
		f.help = blankHelp
	}
	return fs
}
