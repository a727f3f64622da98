package initiator

import "softiser/initiator/blockio"

// Stats counts what sessions did since they were dialled.
type Stats = blockio.Stats
