package compare

import "strings"

// thesisNames are the words of the thesis's output (figure 3.2), which its scripts look for.
var thesisNames = map[Field]string{
	DSCP: "IP::DSCP", ECN: "IP::ECN", Length: "IP::TotalLength", ID: "IP::Identification", Fragment: "IP::FragmentOffset",
	FlowLabel: "IPv6::FlowLabel", Protocol: "IP::Protocol", Source: "IP::SourceIP", Destination: "IP::DestinationIP",
	IPOptions: "IPOption", TCPSource: "TCP::SrcPort", TCPDestination: "TCP::DstPort", Seq: "TCP::SeqNumber", Ack: "TCP::AckNumber",
	Offset: "TCP::DataOffset", Reserved: "TCP::Reserved", FlagsField: "TCP::Flags", ECNFlags: "TCP::Flags", Window: "TCP::WindowsSize",
	TCPChecksum: "TCP::CheckSum", Urgent: "TCP::UrgPointer", UDPSource: "UDP::SrcPort", UDPDestination: "UDP::DstPort",
	UDPLength: "UDP::Length", UDPChecksum: "UDP::CheckSum", ICMPType: "ICMP::Type", ICMPCode: "ICMP::Code",
	ICMPChecksum: "ICMP::CheckSum", ICMPRest: "ICMP::RestOfHeader", Payload: "Raw",
}

// thesisOptions are the words for options, and their field if they have one that changes alone.
var thesisOptions = map[Field][2]string{
	MSS: {"TCPOptionMaxSegSize", "MaxSegSize"}, WindowScale: {"TCPOptionWindowScale", "Shift"},
	SACKPermitted: {"TCPOptionSACKPermitted", ""}, SACK: {"TCPOptionSACK", "Blocks"}, Timestamps: {"TCPOptionTimestamp", "Value"},
	Capable: {"TCPOptionMPTCPCapable", "SenderKey"}, Join: {"TCPOptionMPTCPJoin", "Token"}, DSS: {"TCPOptionMPTCPDSS", "DataSeq"},
	FastOpen: {"TCPOptionFastOpen", "Cookie"},
}

// Thesis writes changes as the thesis does: LAYER::FIELD, with a minus before a field that was removed and a plus
// before one that was added.
func Thesis(changes []Change) string {
	var words []string
	for _, c := range changes {
		sign := map[Kind]string{Removed: "-", Added: "+"}[c.Kind()]
		if !c.Field.IsOption() {
			words = append(words, sign+thesisNames[c.Field])
			continue
		}
		names, ok := thesisOptions[c.Field]
		if !ok {
			names = [2]string{"TCPOption(" + strings.TrimPrefix(string(c.Field), OptionPrefix) + ")", "Data"}
		}
		word := sign + names[0]
		if sign == "" && names[1] != "" {
			word += "::" + names[1]
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}
