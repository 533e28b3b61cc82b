"""How report pages look: one style sheet inside each page. Light and dark by CSS variables, readable at 375 px.

Out: STYLE. Charts name their colours `--series-0` ... Not here: what is drawn (charts), what is said (the reports).
"""

STYLE = """
:root{--ink:#1c2430;--soft:#5b6676;--paper:#fff;--card:#f5f7fa;--line:#dfe4ea;--accent:#2458c5;
--series-0:#2458c5;--series-1:#d9622b;--series-2:#2e8b57;--series-3:#8a4fbf;--series-4:#b08a00;--series-5:#0f8f9c;
--series-6:#c2185b;--series-7:#6d4c41;--series-8:#607d8b;--series-9:#689f38;--series-10:#3f51b5;--series-11:#e08e0b;
color-scheme:light}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa6b6;--paper:#12161d;--card:#1a2029;--line:#2d3642;
--accent:#7ea6ff;--series-0:#7ea6ff;--series-1:#ff9b6a;--series-2:#6fcf97;--series-3:#c49bf0;--series-4:#e5c558;
--series-5:#5fd0dc;--series-6:#f48fb1;--series-7:#bcaaa4;--series-8:#b0bec5;--series-9:#aed581;--series-10:#9fa8da;
--series-11:#ffcc80;color-scheme:dark}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"PingFang SC","Microsoft YaHei","Noto Sans CJK SC",sans-serif}
main{max-width:860px;margin:0 auto;padding:28px 20px 60px}h1{font-size:1.7rem;line-height:1.2;margin:0 0 4px}
h2{font-size:1.2rem;margin:38px 0 10px}p{margin:8px 0}.soft{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:22px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.tile b{display:block;font-size:1.45rem;line-height:1.25}.tile span{color:var(--soft);font-size:.86rem}
figure{margin:12px 0;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px}
figcaption{color:var(--soft);font-size:.88rem;margin-top:6px}.plot-box{position:relative;
height:clamp(190px,32vw,250px);margin:9px 18px 24px 50px}.plot-box .chart{position:absolute;inset:0;width:100%;
height:100%;overflow:visible}.plot-box.map{height:clamp(260px,55vw,420px);margin:4px 0}
.plot-name,.tick,.rule-name,.dot-axis span{color:var(--soft);font-size:.8rem}.plot-name.x{text-align:center}
.tick,.rule-name{position:absolute;white-space:nowrap;line-height:1.2;font-variant-numeric:tabular-nums}
.tick.y{right:100%;margin-right:7px;transform:translateY(-50%)}
.tick.x{top:100%;margin-top:5px;transform:translateX(-50%)}.rule-name{right:2px;transform:translateY(-110%)}
.grid{stroke:var(--line)}.line{fill:none;stroke-width:2}.line.faint{stroke-width:1;opacity:.45}
.mark{stroke:var(--series-6);stroke-width:2}
.rule{stroke:var(--soft);stroke-dasharray:5 4}.point{fill:none;stroke-width:5.5;stroke-linecap:round}
.point.map{stroke-width:8;opacity:.8}.grid,.line,.rule,.point{vector-effect:non-scaling-stroke}
.squares{display:block;width:100%;max-width:460px;margin:0 auto}.square{fill:var(--accent)}
table.heat{width:auto;font-size:.82rem}.heat td,.heat th{border:1px solid var(--line);padding:3px 6px}
.heat tbody td{min-width:32px;text-align:center;vertical-align:middle;
background:color-mix(in srgb,var(--accent) var(--share),transparent)}.heat td.deep{color:var(--paper);font-weight:600}
.heat thead th{vertical-align:bottom}.heat thead span{writing-mode:vertical-rl;transform:rotate(180deg);
max-height:130px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.heat th[scope=row]{position:sticky;left:0;background:var(--card);white-space:nowrap;max-width:150px;overflow:hidden;
text-overflow:ellipsis}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;padding:0;margin:6px 0 0;font-size:.88rem}
.swatch{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;vertical-align:-1px}
.series-0{background:var(--series-0)}.series-1{background:var(--series-1)}.series-2{background:var(--series-2)}
.series-3{background:var(--series-3)}.series-4{background:var(--series-4)}.series-5{background:var(--series-5)}
.series-6{background:var(--series-6)}.series-7{background:var(--series-7)}.series-8{background:var(--series-8)}
.series-9{background:var(--series-9)}.series-10{background:var(--series-10)}.series-11{background:var(--series-11)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.93rem}th,td{text-align:left;
padding:6px 10px;border-bottom:1px solid var(--line);vertical-align:top}th{color:var(--soft);font-weight:600}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}
code,pre{font:13px/1.5 ui-monospace,Menlo,monospace}
pre{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px;overflow-x:auto}
details{margin:10px 0}summary{cursor:pointer;color:var(--accent)}
a{color:var(--accent)}p code{overflow-wrap:anywhere}
mark{background:none;color:var(--accent);font-weight:600}
.band{opacity:.16;stroke:none}
.dots{font-size:.88rem}.dot-row{display:grid;grid-template-columns:minmax(110px,24%) 1fr minmax(92px,16%);gap:12px;
align-items:center;padding:3px 0}.dot-value{text-align:right;font-variant-numeric:tabular-nums}
.dot-track,.dot-axis{position:relative;height:24px}.dot-track{background:var(--paper);border-radius:6px}
.dot-track i{position:absolute;display:block}.dot-line{top:11px;height:2px;background:var(--soft)}
.dot{width:9px;height:9px;margin-left:-4.5px;top:7.5px;border-radius:50%;background:var(--series-0);opacity:.75}
.dot-middle{width:3px;height:18px;top:3px;margin-left:-1.5px;background:var(--ink);border-radius:2px}
.dot-rule{top:0;bottom:0;width:0;border-left:1.5px dashed var(--soft)}.quiet .dot{background:var(--soft)}
.dot-axis span{position:absolute;transform:translateX(-50%)}.dot-axis span:first-child{transform:none}
.bar{left:0;top:4px;height:16px;border-radius:0 4px 4px 0;background:var(--series-0);opacity:.8}
.quiet .bar{background:var(--soft)}.sample{width:8px;height:8px;margin-left:-4px;top:8px;border-radius:50%;
background:var(--paper);border:1.5px solid var(--ink)}
.fill{margin:14px 0}.fill>p{margin:0 0 2px}.fill-sides{display:grid;gap:2px 24px;
grid-template-columns:repeat(auto-fit,minmax(260px,1fr))}.fill .dot-row{padding:1px 0;
grid-template-columns:minmax(80px,34%) 1fr 52px;gap:10px}.fill .dot-track{height:16px;background:var(--card)}
.fill .bar{top:2px;height:12px}.right .bar{background:var(--series-2);opacity:1}.right .dot-name{font-weight:600}
.badge{display:inline-block;border:1px solid var(--line);border-radius:9px;padding:0 7px;color:var(--soft);
font-size:.76rem;white-space:nowrap}th button{all:unset;cursor:pointer;color:var(--soft);font-weight:600}
th button:focus-visible{outline:2px solid var(--accent)}th[aria-sort] button{color:var(--accent)}
table.sortable .number{white-space:nowrap}table.sortable td:first-child{min-width:9em}
td.words{min-width:230px}
ul.lines{padding-left:20px;margin:8px 0}ul.lines li{margin:5px 0}
@media(max-width:640px){main{padding:20px 14px 48px}.dot-row{grid-template-columns:1fr auto;gap:2px 10px}
.dot-track,.dot-axis{grid-column:1/3;grid-row:2}.dot-axis span:last-child{transform:translateX(-85%)}
.tick.x.odd{display:none}.fill .dot-track{grid-column:auto;grid-row:auto}}
@media print{:root{--ink:#000;--soft:#444;--paper:#fff;--card:#fff;--line:#bbb}figure,.tile{break-inside:avoid}
body{font-size:12px}main{max-width:none}}
"""
