"""Common passwords, without digits and signs around them.

From the list of zxcvbn (https://github.com/dwolfhub/zxcvbn-python), which comes from public leaks: the most common
passwords of five letters or more, and all that would be long enough here, without offensive words. Its licence:

MIT License

Copyright (c) 2016 Daniel Wolf

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""

_WORDS = """
a2bec a2becad a2sedafsg6h aaliyah aardvark abcdef abcdefgh abcdefghijkl abcdefghijklmnop aberdeen abgrtyu absolut
access accord achilles action adgjmptw adidas admin administrator adonis aezakmi agent aggies aib2c aib2ced aikido
airborne airbus airforce airplane ais2d ais2def ais2defagsh alabama alaska albatros albion alejandr aleksandr
aleksandra aleksey alenka alexande alexandr alexis alibaba aliens allmine allsop allstar alpha alphabet alpine alucard
amadeus amadeusptfcor amanda amateur amazon amber america amsterda amsterdam an8esa692ian anaconda anakin anarchy
andrei andrew andrewjackie andrey andromeda anfield angel angels angus anhyeuem animal anime antananarivu anthony
anubis apache apollo apple applepie apples aquarius aragorn arizona arjay armagedon armani arsenal artemis artur asdfg
asdfgh asdfghj asdfghjk asdfghjkl asdfjkl asdzxc ashley aspire aspirine asterix astros atlanta atlantis atomic auburn
auckland audia aussie austin australi avalanch avalon avatar avenger avrillavigne awesome azamat azerty azsxdc
azsxdcfv babes babyblue babyboy babydoll babyface babygirl babylon bacardi backdoor badboy baddog badger badgirl
baggins bagira baller balloon balloons balls banana bananas banane bandit bangkok banker banner banshee barbie
barcelon barcelona barefoot barkley barney barsik bartman baseball basket basketba batman bayern beaches beagle beamer
beaner beanie beast beastie beatles beautifu beauty beaver beavis beckham beefcake beemer beetle bella benfica bengals
beowulf beretta berlin bhbirf bicycle bigballs bigbear bigbird bigboy bigdaddy bigdog bigfoot biggie biggles bigguy
bigmac bigman bigmike bigmoney bigone bigred bigtime bikini billy billybob billyboy bimmer bingo birdie birdman
biscuit biteme bizkit black blackbir blackcat blackdog blackhaw blackie blackjac blackjack blacks blacky blade blades
blaster blazer blessed blessing blink blizzard blonde blondes blondie blowme bltynbabrfwbz bluebird blueboy bluedog
blueeyes bluemoon blues bluesky bobafett bobby bobcat boeing bogart bogdan bogey bohica bollocks bollox bomber
bonehead boner bones bonjour bonkers bonsai booger boogie bookworm boomer bootie boots booty boricua bosco bossman
boston bounce bowler bowling boxing boxster boyau2ownnyc bpgjldsgjldthnf brando brandon brandy brasil braves brazil
breast breasts breeze brian brighton bristol britney broder bronco broncos brooklyn brownie browns brucelee bruins
brutus bubba bubbas bubble bubbles bucket buckeye buckeyes buckshot buddah buddha buddie buddy budlight budman
budweise buffalo buffett buffy bugger builder bulldog bulldogs bullet bulls bullseye bunghole bunny burger
businessbabe buster butch buzzard byteme cabbage cactus cadillac caesar calgary calico caliente californ caligula
camaro cambiami camel camelot camels cameron camper canada cancer cancun candle candyman canon cantona capone captain
caramel cardinal carolina carpet carrera carrot cartman cartoon casanova caserta casey casino casper catch catdog
catfish catherin catman cavalier caveman ccbill cdtnkfyf celeron celica celine celtic celtics cerberus cessna cfitymrf
cgfhnfr chainsaw champ champion champs changeme changemenow chaos charger chargers charles charli charlie charlott
charlton charly charmed chaser cheater checkers cheeks cheers cheese cheetah chelsea cherokee cherry chester chevelle
chevrole chevy chewie cheyenne chicago chicken chickens chickenwing chicks chico chiefs chinook chipper chivas
chocolat chopper chris chrisbln chrissy christ christia christin christop christopher chrome chronic chrono chuang
chubby chuckie chuckles chucky chunky cicero cigars cinder cinnamon cjdthitycndj cjkysirj cjkywt clancy clapton
clarinet claudi claymore clemson clevelan clipper cloud clouds clover cobra cocacola coconut coffee cohiba colombia
colorado colors coltrane combat comet commando compaq compute computer concrete condom condor connect connor consumer
contortionist contrasena cookie cookies cooldude cooler coolguy coolio coolman cooter copper corona corperfmonsy
corrado correcthorsebatterystaple corvette cosmo cosmos cosworth cougar counterstrike cowboy cowboys coyote cracker
crazy crazybab creamy creative cricket crimson critter crjhgbjy cruise cruiser crunch crusader crysis crystal cthulhu
cthutq cubbies cubswin cuddles cupcake curious custom cutter cxfcnmt cyber cyclone cyclops cypress d8cd98foob daddy
daewoo dagger daisy dakota dalejr dallas dammit damnit dancer danger danie daniel daniil danila danni dannyboy danzig
darkman darkness darkside darkstar david davide davids daytona dbrnjh dbrnjhbz deadhead deadman death deejay
deepthroat deeznuts deeznutz defaultpassword defender defiant deftones delete delphi delta deluxe denali deniska
depeche desert designer desire deskjet destiny detroit devil devildog devilmaycry devils dexter dfcbkbq dfkthbz dfkthf
dfktynbyf dfvgbh dharma diablo diamond diamonds diehard diesel dietcoke digger diggler digital digitalprodu dilbert
dilligaf dinamo dingdong dinosaur discover disney diver divine djivanfros dkflbckfd dkflbvbh dkflbvbhjdbx dkflbvbhjdyf
doberman doctor dodge dodger dodgeram dodgers dogfood doggie doggy doghouse dogman dollar dolphin dolphins domainlock
domino donkey donuts doobie doodle doogie dookie doughboy dracula drago dragon dragonball dragons dragoon dreamer
dreams driver drizzt droopy drowssap drpepper drummer dthjybrf dublin ducati duchess durango duster dutchess eagle
eagles eastside eatme eclipse eduard edward eeyore einstein ekaterina electra electric electron element elephant
elizabet elvis emerald emily eminem empire engage engineer enigma enter enterpri enterprise eraser ericsson eternal
eternity eureka europa everest everton excalibu exigen exigent exodus explorer express extreme fabie fabric facial
falcon falcons fallen fallout fantasy farside faster fatboy fatcat fatman feather fender fernand ferrari ferret fester
fghtkm ficken fiesta figaro fighter filter finalfantasy finger fireball firebird firefly firefox fireman fishes
fishing fisting fitness fkmnthyfnbdf fktrcfylh fktrcfylhf fktrcfylhjdbx fktrcfylhjdf fktrcfylhjdyf fktrctq flames
flamingo flash flatron fletch flipper floppy florian florida flounder flower fluffy flvbybcnhfnjh flyboy flyers foobar
footbal football fordf forest forever forfun formula fortuna foryou fossil foxtrot francesc frank franky freaks freaky
freckles freddy frederiksberg freedom freeuser friday fright frisco frisky frodo frogger froggy front frontier frosty
fubar fugazi funtime fusion futbol fyfcnfcbz fylhtq fynfyfyfhbde fytxrf gabrie gabriell galaxy galina galore gambit
gamecube gameover gandalf gangsta gangster garden garfield gargoyle gateway gator gators gbpltw gegcbr geheim gemini
genesis genius george geronimo gesperrt getmoney getsome gfhjkm ghbdtn ghbdtnbr ghbdtnrfrltkf ghetto ghhhathj ghjcnj
ghjcnjgbpltw ghjcnjgfhjkm ghjcnjnfr ghjcnjqgfhjkm ghjcnjrdfibyj ghjnbdjcnjzybt ghost ghostrider giants ginger giorgi
girls gizmo gizmodo gjkbyf gjkysqgbpltw gladiator gmoney gns6gn goalie goaway goblin goblue gobucks goddess godfathe
godfather godsmack godzilla gofish goforit golden goldfish goldstar goldwing golfball golfer golfing goliath gollum
gonavy gonzo goober goodboy goodluck goodtime goofy google goose gopher gordon gorilla gotcha gothic gotohell govols
granny great greatone green greenbay greenday greenlantern greens gregor gremlin grendel gretzky griffey gringo
grizzly gromit groove groovy groucho grumpy gtnhjpfdjlcr guardian guiness guinness guitar gundam gunnar gunner gunners
gustav hacked hacker hairy halflife hallo hambone hamburg hamlet hammer hammers hamster handyman hannah hannibal
hansolo happy happyday hardcore hardrock harley harry havefun hawaii hawaiian hawkeye hawkeyes hayabusa hdt6anwsdteivb
hearts heather heaven heckfy hedgehog hedimaptfcor heineken hellfire hello helloo hellyeah helmet helpme hendrix
herbie hercules hermes hershey hesoyam hidden highland hiphop hithere hitman hjvfirf hobbes hobbit hockey hokies
holiday holly hollywoo homer homers homerun honda honey hongkong hoosier hoosiers hooter horizon horndog hornet horney
horse horses hotbox hotboy hotdog hotred hotrod hotshot hotstuff hottie hummer hunter hunting hurrican husker huskers
huskies hyperion iampurehaha ib6ub ibanez icecream iceman idontkno idontknow iforgot iguana ihateyou illini illusion
ilovemyfamily iloveu iloveyo iloveyou immortal impala incubus indiana indians indigo inferno infiniti infinity
ingodwetrust insane insert installdevic installsqlst integra intel internet intrepid intruder inuyasha irina irish
ironman iseedeadpeople italia ivanov ivanova iverson iwantu jabroni jackal jackoff jackson jacob jagger jaguar jamaica
james jamesbon jamesbond jamie jammer jammin jarhead jasmine jason jasper jaybird jayden jayeeuz jayhawk jazzman jenny
jericho jerkoff jessic jessica jester jesus jethro jewels jimbo jimbob jimmy jktymrf johann johannes johnboy joker
jokers jordan joshua jrcfyf juggalo juice jumper junebug jungle junior jupiter justame justdoit justice justin
justinbieber justme juventus kahuna kaktus kamikaze kangaroo kansas karate karina karolina kashmir kasper katana
katerina katie katrin kawasaki kcj9wxsn keeper kelly kenshin kenwood kenworth kevin kevinp keyboard keystone keywest
kicker killbill killer killers killme kingfish kingkong kingpin kingston kinky kipper kirill kisses kissme kitkat
kitten kitty kittycat kittykat klaster klingon knickers knicks knights knopka kodiak kolobok koshka kosmos kostya
kotenok krishna ktyjxrf kungfu labrador labtec lacrosse ladybug laguna lakers lakota lancelot lancer lansing laptop
larisa laser lasvegas latino leather leavemealone ledzep legacy legend legion legolas lennon leonid leopard lespaul
lestat letmein letsgo lexmark lexus lhbjkjubz liberty licker lickit lickme lifehack lighter lightnin lightning lights
linda lineage lionking liquid liverpoo liverpool lizard lobster logan logitech lokomotiv lolipop lollipop london
lonestar lonewolf longhorn looker looser loser losers loveit lovely loveme lover loverboy lovers loveyou lowrider
lucifer lucky luckydog ludmila lvbnhbq lytghjgtnhjdcr macdaddy machine macross maddie maddog madina madison madman
madmax madness madonna maestro maggie maggot magic magick magicman magnum magnus magpie maiden mailcreated mailman
majestic makaveli maksim malaka malibu malina mallard mamapapa manchest manchester mandingo maniac manowar manson
manutd maprchem maradona marathon maria marina marine mariners marines marino marius marlboro marley martin martini
maryjane maste master matador matrix matthew mature maurolarastefy maverick maxell maxim maxima maximus maxwell mayday
mayhem mazafaka meatball meathead meatloaf mechanic medusa megadeth megaman megatron meister melissa mellon mellow
memorex memphis menace mercedes mercury meridian merlin mermaid mersedes metallic metallica mevefalkcakk mexico miami
michae michael michaeljackson michigan mickey microlab micron microsof microsoft midget midnight midway mighty mikey
milana milano milena milkman minecraft minime minnesota_hp mirage misfit mishka missy mister mistress misty mittens
mnbvcxz molly moloko molson momoney monaco monalisa monday mondeo money moneyman moneys mongoose monitor monke monkey
monkeys monopoly monster montana montgom montreal moocow mookie moonlight moose morganstanley morpheus mortalkombat
mortgage mortimer moscow motdepasse mother motherlode motorola mountain mouse mozart msorcloledbr muffin mulder
multiplelo munchkin muppet muscle mushroom music musica musicman mustafa mustang mustangs mustard mybaby mylife mylove
mypassword mystic napster naruto nascar nasty nastya natali natasha naughty nccitoia nccitoid nccitoie nebraska
needforspeed nemesis nemvxyheqddsoqxyxyzi neptune networkingpe nevada newbie newcastl newlife newport newproject
newyork nfnmzyf nhecsyfujkjdt nhfdvfnjkju nhfycajhvths nickel nicola nicole nightcrawler nikita nikola nikolay nimbus
nimrod niners ninja nintendo nipper nirvana nissan nitram nofear nokia nolimit nondriversig noodle noodles nookie
novell nudist nugget number nuttertools nvidia nwoalife nyjets nylons nymets oakland oasis obiwan oblivion ohyeah
oilers oksana olcrackmaster oldman oliver olivier omega onelove onetime online onlyme ontheoutside opensesame openup
operator optimus oracle orange oranges orchid orioles orion oscar osiris outkast outlaw overkill overlord oxford
pacers packard packer packers pacman padres paintbal paintball pakistan paladin panama panasoni panasonic pancho panda
pandora pantera panther panthers pantyhos panzer paradise paradox paraklast parola parrot pascal passphrase password
passwort patches patrick patriot patriots pavilion peach peaches peanut peanuts pearljam pebbles peekaboo peewee
pegasus pencil penguin penguins penny penthous pentium pepper pepsi pervert peter peterpan peugeot phantom philippe
philips phillies philly phish phoenix photos phpbb pianoman picard piccolo pickle pickles piglet pikachu pillow
pineappl pingpong pinhead pinkfloy pioneer pippen pirate pirates pisces pissing pissoff pistol pitbull pizza pizzas
planet plastic platinum player playstation playtime plumber plymouth pobeda poeotiopseao poison poiuyt poiuytrewq
pokemon polaris police polina polska pompey poncho pontiac poochie poodle poohbear pookie poontang pooper poopie
pooter popcorn popeye poppy porkchop porsche portland portugal poseidon possum postal potato powder power preacher
precious predator prelude presario presto primus prince princes princess printer prissy private privet prodigy prophet
proxy psycho ptybnxtvgbjy puddin pudding pumpkin punisher punkin punkrock punksnotdead puppies puppy pupsik purdue
purple pussie pussies putter pyramid python pytorch q2wee q2weear q2weearst q2weearst6y qa2wseed qa2wseedarf
qa2wseedarfstg qawsed qawsedrf qawsedrftgyh qaz2wsx qaz2wsxeedc qaz2wsxeedcarfv qazi2ewsx qazwsx qazwsxed qazwsxedc
qazwsxedcrfv qazwsxedcrfvtgb qazxsw qazxsw2eedc qazxsw2eedcvfr qazxswedc qazxswedcvfr qazzaq qiw2e qiw2eer qiw2eerat
qiw2eeratsy qiw2eeratsy6u qiw2eeratsy6uti qiw2eeratsy6uti8o9p quantum quartz quattro queens qwaszx qwaszxerdfcv qweaer
qweaers6ty qweas6rty qweasd qweasdzxc qweewq qwerasdf qwerasdfzxcv qwert qwertasdfgzxcvb qwerty qwertyasdfgh qwertyu
qwertyui qwertyuio qwertyuiop qwertyuiopasdf qwertyytrewq qwertz r2d2cepo rabbit rabota racecar racer racerx rachel
racing ragnarok raider raiders rainbow rainman raistlin rambler rambo rammstein ramses rancid random ranger rangers
raptor rascal rasdzv rasputin rasta rastaman raven ravens rbhbkk rctybz reader realmadrid reaper rebecca rebel rebels
redalert redbull reddog redfish redhead redhot redline redman redneck redrum redskins redsox redwing redwings redwood
reebok reefer renault renegade rereirf rescue residentevil retard rfhbyf rfnthbyf rfrfirf rfrnec rhbcnbyf rhfcjnrf
rhtdtlrj richard rightnow ripken ripper ripple rjirfrgbde rjntyjr rjycnfynby roadkill roadking roadrunn robert
robotech rocker rocket rockets rockford rockhard rockon rocks rockstar rocky rodman roller rolltide romashka rommel
ronaldo rookie rooster rootbeer rosebud rotten route rover rovers royals rtyuehe rubber rulez rulezzz runescape runner
ruslan russia rustam rusty sabbath sabine sabres sadie safari sailboat sailing sailor saints sakura salamander saleen
sally salmon salomon salsero samantha samiam sammy samson samsung samurai sancho sandiego sandman sandro sandy
sanfrancisco sapper sapphire sarah saratoga sascha sasha sasuke satan satana saturn sauron sausage sayang scania
scanner scarface scarlet schoolgirlie scooby scoobydo scooter scorpio scorpion scotch scotland scott scotty scout
scrappy scream scruffy scuba scully seahawks seamus searay seattle sebastia secret secretpassword security seeker
seemnemaailm seinfeld select seminole semperfi sentinel septembe serega serenity sergei sergey sergi sersolution
server sesame seven shado shadow shaggy shalom shaman shamrock shaney shang shania shannon shaolin shark sharks sharky
shasta shaved shazam shelby sherlock shiloh shogun shooter shorty shotgun showme showtime siemens sierra silver
silverad simba simon simple simpsons sinatra sinbad sinister sinner sirius sithlord sixers skater skeeter skidoo
skiing skinny skipper skippy skittles skorpion skydive skylar skyline skywalke skywalker slacker slappy slapshot slave
slayer sleepy slick slider slinky slipknot smeghead smegma smelly smiles smiley smiths smitty smoke smoker smokes
smokey smokin smooth smudge snake snakes snapon snapper snapple snatch sneakers snickers sniper snoop snoopdog snoopy
snowball snowboar snowman snuggles sobaka soccer socrates softball software sojdlgi2ealjg soldier soleil solnce sommer
sonic sonics sonnenschein sonyericsson sooners sophie sosoi2ealjg southpark spaceman sparkle sparky sparta spartak
spartan spartans spawn speaker specialinsta spectrum speedy spider spiderma spiderman spidey spike spirit spitfire
splash splinter sponge spongebob spooky spring sprint sprite spunky spurs sputnik spyder squash squirrel srinivas
stalin stalker stallion starbuck starcraft stardust starfire starfish stargate starman starship starter startrek
starwars static stealth steeler steelers stefano steph stephani stereo sterlin steve stickdaddy sticks sticky stimpy
sting stinger stingray stinky stinkyfinger stocking stocks stonecol stoned stones stoney storm stormy stranger
stratocaster strider strike striker studly stumpy stunner stupid subaru sublime subway success sugar sultan summer
summit sundance sunday sunflowe sunnyday sunrise sunset sunshin sunshine super superfly superman supersecret supersta
superstar surfer surfing suzuki svetik svetlana svoboda swallow sweet sweetpea sweets sweety swimmer swimming swinger
swingers sword swordfis swordfish swords sydney syncmaster syracuse systemofadown tacobell tacoma talisman tango
tanker tardis target tarheel tarheels tarzan tattoo tatyana taurus taylor tazman tazmania tdutybq teacher technics
techno teddy teddybea teens tekken telefon telemike tempest tennis tequila terminator terrapin terror tester testing
testpassword texas thailand thanatos thankyou theboss thecakeisalie thecat thedog thedude theend thegame thegreat
thekid theking theman theone therock thesims thirteen thomas thongs thuglife thumbs thumper thunder thunderb tiberius
ticketmaster tickle tiffany tiger tigers tigger tights timber tinker tinkerbell tinman titanic titanium titans
titleist titten titties titty tolkien tomato tomcat tommy tommyboy tootsie topcat topdog topgun topher topper
topsecret tornado toronto toshiba tottenha toyota tracker tractor trader trance transam translator trapper travel
traveler treasure trebor trfnthbyf triangle tricky trident trigger trinity triton triumph trixie trojan trojans
trombone trooper trouble truck trucker trucks truelove trumpet trunks trustno tsunami tuesday tunafish tundra turbo
turkey turtle tweety twilight twinkle twisted twister tyler typhoon ufkbyf ultima ultimate umbrella underdog
undertaker unicorn unreal usarmy usnavy utopia vacation vader valentin valentina valera valhalla valkyrie vampire
vanhalen vanilla vanyarespekt vector vectra vedder vegeta velvet venera verbatim veritas vermont veronika vertigo
vette vfczyz vfhbyf vfhecz vfhufhbnf vfksirf vfrcbv vfrcbvrf vfvekz vfvfgfgf vfvfvskfhfve vfvjxrf viagra victory
viewsonic viking vikings viktor viktoria viper vipers vision vitalik vkontakte vladik vladimir vladimirovna vladislav
volley volvo voodoo vortex voyager vulcan walleye walmart walnut walrus wapbbs warcraft wareagle warhammer
warhammeraok warlock warlord warrior warriors warthog watcher waterloo wazzkaprivet weasel webmaster websolutions
websolutionssu webuivalidat weezer weihnachtsbau weihnachtsbaum welcome welder werewolf westham westside westwood
whatever whatsup wheels whiskers whiskey whisky whisper whitesox whitey whocares whosyourdaddy whynot wibble wicked
wildcat wildcats wildfire wildman william willow windows windsor winner winston winter wisdom wishbone wizard wolfgang
wolfie wolfman wolfpack wolverin wolverine wolves wombat woody woohoo wookie worms wrangler wrestle wrestlin wrinkle
wutang x2zkg8w xanadu xavier xfiles xtreme yamaha yankee yankees ybrbnf ybrjkfq yellow yfnfif yomama yosemite yourmom
ytrewq yzerman zaphod zaqi2wsx zaqixsw zaqixsw2cde zaqwsx zaqwsxcderfv zaqxsw zcfvfzkexifz zenith zeppelin zerocool
zheng zhong zidane ziggy zigzag zipper zippy zix2c zix2cev zix2cevabsn6m zombie zorro zqjphsyf6ctifgu zvezda zxasqw
zxcasd zxcasdqwe zxcvbn zxcvbnm
"""

COMMON = frozenset(_WORDS.split())
