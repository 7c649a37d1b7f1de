package mptcp

// Numbers of the kernel's user interface, from include/uapi/linux/mptcp.h,
// mptcp_pm.h and inet_diag.h.

const (
	familyName     = "mptcp_pm"
	familyVersion  = 1
	eventGroupName = "mptcp_pm_events"
)

// enum: MPTCP_PM_CMD_*
const (
	cmdSetFlags       = 7
	cmdAnnounce       = 8
	cmdRemove         = 9
	cmdSubflowCreate  = 10
	cmdSubflowDestroy = 11
)

// enum: MPTCP_PM_ATTR_*
const (
	attrLocal   = 1
	attrToken   = 4
	attrLocalID = 5
	attrRemote  = 6
)

// enum: MPTCP_PM_ADDR_ATTR_*
const (
	addrFamily  = 1
	addrID      = 2
	addrIP4     = 3
	addrIP6     = 4
	addrPort    = 5 // u16, host byte order
	addrFlags   = 6
	addrIfIndex = 7
)

// MPTCP_PM_ADDR_FLAG_*
const (
	addrFlagSignal = 1 << 0
	addrFlagBackup = 1 << 2
)

// enum mptcp_event_attr
const (
	eventToken       = 1
	eventLocalID     = 3
	eventRemoteID    = 4
	eventLocal4      = 5
	eventLocal6      = 6
	eventRemote4     = 7
	eventRemote6     = 8
	eventLocalPort   = 9  // network byte order
	eventRemotePort  = 10 // network byte order
	eventBackup      = 11
	eventError       = 12
	eventFlags       = 13
	eventTimeout     = 14 // milliseconds
	eventIfIndex     = 15
	eventResetReason = 16
	eventResetFlags  = 17
	eventServerSide  = 18 // deprecated in 6.18 in favour of a flag
)

// MPTCP_PM_EV_FLAG_*
const (
	eventFlagDenyJoinID0 = 1 << 0
	eventFlagServerSide  = 1 << 1 // since 6.18
)

// inet_diag
const (
	protocolMPTCP = 262

	diagExtInfo   = 1 << (diagAttrInfo - 1)
	diagExtMemory = 1 << (diagAttrMemory - 1)

	diagAttrInfo    = 2
	diagAttrMemory  = 7 // INET_DIAG_SKMEMINFO
	diagAttrULPInfo = 19
	diagAttrCgroup  = 21

	diagReqProtocol = 3 // attribute of the request: protocols above 255

	ulpAttrMPTCP = 3

	subflowAttrTokenRemote = 1
	subflowAttrTokenLocal  = 2
	subflowAttrMapSeq      = 4
	subflowAttrMapLen      = 7
	subflowAttrFlags       = 8
	subflowAttrIDRemote    = 9
	subflowAttrIDLocal     = 10
)

// MPTCP_INFO_FLAG_*
const infoFlagFallback = 1 << 0
